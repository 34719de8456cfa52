/** The markup of agents as plain data, in linear time. */

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)/
const HEADING = /^(#{1,6})\s+(\S.*)$/
const ITEM = /^(\s*)(?:([-*+])|(\d{1,9})[.)])\s+(.*)$/
const RULE = /^ {0,3}([-*_])( *\1){2,}\s*$/
const QUOTE = /^ {0,3}> ?(.*)$/
const TABLE_ROW = /^\s*\|.*\|\s*$/
const TABLE_RULE = /^\s*\|[\s:|-]+\|\s*$/

/** @param {string} text */
export function blocksOf(text) {
	/** @type {Block[]} */
	const blocks = []
	/** @type {string[]} */
	let paragraph = []
	const lines = text.split("\n")
	const endParagraph = () => {
		if (paragraph.length > 0) blocks.push({type: "paragraph", text: paragraph.join("\n")})
		paragraph = []
	}
	let at = 0
	while (at < lines.length) {
		const line = lines[at]
		const found = line.trim() === "" ? null : blockAt(lines, at, paragraph.length > 0)
		if (found === null) {
			if (line.trim() === "") endParagraph()
			else paragraph.push(line)
			at += 1
			continue
		}
		endParagraph()
		blocks.push(found.block)
		at = found.next
	}
	endParagraph()
	return blocks
}

/**
 * @param {string[]} lines @param {number} at @param {boolean} inParagraph
 * @returns {{block: Block, next: number} | null}
 */
function blockAt(lines, at, inParagraph) {
	const line = lines[at]
	const fence = FENCE.exec(line)
	if (fence) return fenceAt(lines, at, fence[1], fence[2])
	const heading = HEADING.exec(line)
	if (heading) return {block: {type: "heading", level: heading[1].length, text: heading[2]}, next: at + 1}
	if (RULE.test(line)) return {block: {type: "rule"}, next: at + 1}
	if (QUOTE.test(line)) {
		const {taken, next} = takeWhile(lines, at, (one) => QUOTE.test(one))
		return {block: {type: "quote", text: taken.map((one) => QUOTE.exec(one)?.[1] ?? "").join("\n")}, next}
	}
	if (TABLE_ROW.test(line) && TABLE_RULE.test(lines[at + 1] ?? "")) {
		const {taken, next} = takeWhile(lines, at, (one) => TABLE_ROW.test(one))
		return {block: {type: "table", rows: taken.filter((_, row) => row !== 1).map(cellsOf)}, next}
	}
	// Within a paragraph a number is no list.
	const item = ITEM.exec(line)
	return item && !(inParagraph && item[3] !== undefined && item[3] !== "1") ? listAt(lines, at) : null
}

/** @param {string[]} lines @param {number} at @param {string} fence @param {string} language */
function fenceAt(lines, at, fence, language) {
	const closing = new RegExp(`^ {0,3}\\${fence[0]}{${fence.length},}\\s*$`)
	const {taken, next} = takeWhile(lines, at + 1, (one) => !closing.test(one))
	return {block: /** @type {Block} */ ({type: "code", language, text: taken.join("\n")}), next: next + 1}
}

/** @param {string[]} lines @param {number} at */
function listAt(lines, at) {
	const first = ITEM.exec(lines[at] ?? "")
	/** @type {{depth: number, text: string}[]} */
	const items = []
	let next = at
	for (; next < lines.length; next += 1) {
		const line = lines[next]
		const item = ITEM.exec(line)
		const indent = item?.[1]?.replace(/\t/g, "    ").length ?? 0
		const last = items.at(-1)
		if (item && (indent > 1 || (item[3] !== undefined) === (first?.[3] !== undefined))) {
			items.push({depth: Math.min(4, Math.floor(indent / 2)), text: item[4]})
		} else if (!item && last && /^\s+\S/.test(line) && !FENCE.test(line)) {
			last.text += `\n${line.trim()}`
		} else if (line.trim() !== "" || !ITEM.test(lines[next + 1] ?? "")) {
			break
		}
	}
	const isNumbered = first?.[3] !== undefined
	return {block: /** @type {Block} */ ({type: "list", isNumbered, start: Number(first?.[3] ?? 1), items}), next}
}

/** @param {string[]} lines @param {number} from @param {(line: string) => boolean} fits */
function takeWhile(lines, from, fits) {
	let next = from
	while (next < lines.length && fits(lines[next])) next += 1
	return {taken: lines.slice(from, next), next}
}

/** @param {string} row */
function cellsOf(row) {
	return row
		.trim()
		.slice(1, -1)
		.split("|")
		.slice(0, 32)
		.map((cell) => cell.trim())
}

// None can match in two ways at one place: linear time.
const SPAN =
	/`([^`\n]{1,2000})`|\*\*([^*\n]{1,1000})\*\*|(?<![\w*])\*([^\s*][^*\n]{0,500})\*(?![\w*])|\[([^[\]\n]{1,500})\]\(([^()\s]{1,2000})\)|(https?:\/\/[^\s<>"'`)\]}]{1,2000})/g

/** @param {string} text */
export function spansOf(text) {
	/** @type {Span[]} */
	const spans = []
	let end = 0
	for (const found of text.matchAll(SPAN)) {
		if (found.index > end) spans.push({type: "text", text: text.slice(end, found.index)})
		const [all, code, strong, em, label, target, bare] = found
		end = found.index + all.length
		if (code !== undefined) spans.push({type: "code", text: code})
		else if (strong !== undefined) spans.push({type: "strong", text: strong})
		else if (em !== undefined) spans.push({type: "em", text: em})
		else if (label !== undefined) spans.push({type: "link", text: label, address: target})
		else {
			const address = bare.replace(/[.,;:!?]+$/, "")
			end -= bare.length - address.length
			spans.push({type: "link", text: address, address})
		}
	}
	if (end < text.length) spans.push({type: "text", text: text.slice(end)})
	return spans
}
