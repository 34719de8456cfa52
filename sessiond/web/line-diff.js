// Beyond it old lines stand before new ones.
const MOST_CELLS = 1_000_000
const CONTEXT = 3

/** @param {string} before @param {string} after */
export function diffLines(before, after) {
	const [old, now] = [linesOf(before), linesOf(after)]
	let start = 0
	while (start < old.length && start < now.length && old[start] === now[start]) start += 1
	let end = 0
	while (end < old.length - start && end < now.length - start && old.at(-1 - end) === now.at(-1 - end)) end += 1
	const middle = compare(old.slice(start, old.length - end), now.slice(start, now.length - end))
	return [
		...old.slice(0, start).map((text) => line(" ", text)),
		...middle,
		...old.slice(old.length - end).map((text) => line(" ", text)),
	]
}

/** @param {DiffLine[]} lines */
export function foldKept(lines) {
	const near = new Set()
	lines.forEach(({sign}, at) => {
		if (sign === "+" || sign === "-") for (let one = at - CONTEXT; one <= at + CONTEXT; one += 1) near.add(one)
	})
	/** @type {DiffLine[]} */
	const shown = []
	lines.forEach((one, at) => {
		if (near.has(at) || one.sign === "@") shown.push(one)
		else if (shown.at(-1)?.sign !== "@") shown.push(line("@", ""))
	})
	return shown
}

/** @param {string} patch */
export function patchLines(patch) {
	return linesOf(patch).flatMap((text) => {
		if (/^(diff --git|index [0-9a-f]|--- |\+\+\+ |\*\*\* (Begin|End) Patch)/.test(text)) return fileLine(text)
		if (text.startsWith("@@") || text.startsWith("*** ")) return [line("@", text.replace(/^\*\*\* /, ""))]
		const sign = text[0]
		return sign === "+" || sign === "-" ? [line(sign, text.slice(1))] : [line(" ", text.replace(/^ /, ""))]
	})
}

/** @param {DiffLine[]} lines */
export function countChanges(lines) {
	const count = (/** @type {string} */ wanted) => lines.filter(({sign}) => sign === wanted).length
	return {added: count("+"), removed: count("-")}
}

/** @param {string[]} old @param {string[]} now */
function compare(old, now) {
	/** @type {DiffLine[]} */
	const lines = []
	if (old.length * now.length > MOST_CELLS) {
		return [...old.map((text) => line("-", text)), ...now.map((text) => line("+", text))]
	}
	const width = now.length + 1
	const lengths = new Uint32Array((old.length + 1) * width)
	const at = (/** @type {number} */ row, /** @type {number} */ column) => lengths[row * width + column]
	for (let row = old.length - 1; row >= 0; row -= 1) {
		for (let column = now.length - 1; column >= 0; column -= 1) {
			lengths[row * width + column] =
				old[row] === now[column] ? at(row + 1, column + 1) + 1 : Math.max(at(row + 1, column), at(row, column + 1))
		}
	}
	let [row, column] = [0, 0]
	while (row < old.length || column < now.length) {
		const isKept = old[row] === now[column]
		const isOld = row < old.length && (column === now.length || at(row + 1, column) >= at(row, column + 1))
		lines.push(isKept ? line(" ", old[row]) : isOld ? line("-", old[row]) : line("+", now[column]))
		if (isKept || isOld) row += 1
		if (isKept || !isOld) column += 1
	}
	return lines
}

/** @param {string} text */
function fileLine(text) {
	const name = /^\+\+\+ (?:b\/)?(.+)/.exec(text)?.[1]
	return name === undefined ? [] : [line("@", name)]
}

/** @param {string} text */
function linesOf(text) {
	if (text === "") return []
	return (text.endsWith("\n") ? text.slice(0, -1) : text).split("\n")
}

/** @param {DiffLine["sign"]} sign @param {string} text */
const line = (sign, text) => ({sign, text})
