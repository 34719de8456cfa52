import {CodeBlock} from "./code-block.js"
import {copyButton} from "./copy-button.js"
import {fill, h, keepChildren, wordButton} from "./element.js"
import {formatBytes, formatCount, formatMoment, formatTime, formatTokens} from "./format.js"
import {isToolResult, jsonOf, partsOf, resultOf, speakerOf, textOf} from "./message-parts.js"
import {objectOr, safeLine} from "./plain-text.js"
import {RichText} from "./rich-text.js"
import {ToolCall} from "./tool-call.js"

const PARTS_AT_ONCE = 100
// What the daemon writes in place of what is too large.
const OMITTED = "[sessions_history omitted: message too large]"

export class MessageView extends HTMLElement {
	/** @param {MessagePiece} piece @param {MessageActions} actions */
	constructor(piece, actions) {
		super()
		this.piece = piece
		this.actions = actions
		this.most = PARTS_AT_ONCE
		this.margin = h("div.margin")
		this.body = h("div.body")
		this.tools = h("div.tools")
	}

	/** What somebody opened stays open. @param {MessagePiece} piece */
	show(piece) {
		const isNew = this.body.parentNode === null
		const isChanged = isNew || this.piece.isFirst !== piece.isFirst || this.piece.entry.cursor !== piece.entry.cursor
		this.piece = piece
		if (isNew) {
			this.setAttribute("role", "article")
			this.setAttribute("tabindex", "-1")
			this.append(this.margin, this.body, this.tools)
		}
		if (isChanged) {
			const {who, word} = speakerOf(piece.entry.message)
			this.className = `from-${isToolResult(piece.entry.message) ? "assistant" : who}${piece.isFirst ? " first" : ""}`
			this.dataset.seq = String(piece.entry.seq)
			this.setAttribute("aria-label", `${word}, message ${piece.entry.seq}`)
			this.fillMargin(word)
			this.fillTools()
		}
		this.fillBody()
		return this
	}

	/** @param {string} word */
	fillMargin(word) {
		const {piece} = this
		const {entry, isFirst} = piece
		const model = typeof entry.message.model === "string" ? safeLine(entry.message.model) : ""
		const when =
			entry.at === null
				? null
				: h("time", {title: momentAndTokens(entry), datetime: new Date(entry.at).toISOString()}, formatTime(entry.at))
		const who = h("span", {class: isFirst ? "who" : "unseen", title: model || false}, word)
		fill(this.margin, who, when)
	}

	fillBody() {
		keepChildren(this.body, this.bodyItems(), {
			key: (item) => item.key,
			version: (item) => item.version,
			build: (item) => item.build(),
			update: (node, item) => item.update?.(node),
		})
	}

	bodyItems() {
		const {piece, actions} = this
		const {message, cursor} = piece.entry
		const omitted = objectOr(message.omitted).bytes
		// Another message with such a field hides nothing by it.
		if (typeof omitted === "number" && message.content === OMITTED) {
			const show = () => wordButton("Show it", () => actions.whole(piece))
			return [line(`omitted ${cursor}`, () => h("p.cut", {}, `This message has ${formatBytes(omitted)}. `, show()))]
		}
		if (isToolResult(message)) return [this.orphanItem()]
		const parts = partsOf(message)
		const items = parts.slice(0, this.most).map((part, at) => this.partItem(part, at))
		const {from} = speakerOf(message)
		if (from) items.unshift(this.senderItem(from))
		if (parts.length > this.most) items.push(this.moreItem(parts.length))
		const error = message.errorMessage
		if (typeof error === "string") items.push(line("error", () => h("p.problem", {}, safeLine(error, 2000))))
		if (piece.files.length > 0) items.push(line("files", () => fileList(piece.files)))
		return items.length > 0 ? items : [line("nothing", () => h("p.hint", {}, "(nothing)"))]
	}

	/** @param {string} from */
	senderItem(from) {
		const {actions} = this
		return line("sender", () => h("p.sender", {}, "from ", actions.linkTo(from, {title: safeLine(from)})))
	}

	orphanItem() {
		const {entry} = this.piece
		const name = resultOf(entry.message).name || String(entry.message.role)
		return this.callItem({kind: "toolCall", id: entry.id, name, args: entry.message.command ?? ""}, entry)
	}

	/** @param {Part} part @param {number} at @returns {BodyItem} */
	partItem(part, at) {
		switch (part.kind) {
			case "text":
				return {
					...line(`text ${at}`, () => new RichText().show(part.text)),
					version: part.text,
					update: (node) => node.show(part.text),
				}
			case "thinking": {
				const build = () =>
					folded("thinking", "Thinking", safeLine(part.text, 120), () => new RichText().show(part.text))
				return line(`thinking ${at} ${part.text.length}`, build)
			}
			case "toolCall":
				return this.callItem(part, this.piece.results.get(part.id), at)
			case "image":
				return line(`image ${at}`, () => imageElement(part))
			default:
				return line(`other ${at}`, () => h("p.hint", {}, `[${safeLine(part.name, 60)}]`))
		}
	}

	/** @param {ToolCallPart} part @param {Entry | undefined} result @returns {BodyItem} */
	callItem({id, name, args}, result, at = 0) {
		const {entry, isRunning} = this.piece
		const call = {id, name, args, at: entry.at, result, isLive: isRunning}
		const version = result?.cursor ?? String(isRunning)
		return {
			key: `call ${at} ${id}`,
			version,
			build: () => new ToolCall().show(call),
			update: (node) => node.show(call),
		}
	}

	/** @param {number} count */
	moreItem(count) {
		const show = () => {
			this.most += 5 * PARTS_AT_ONCE
			this.fillBody()
		}
		const build = () => h("p.cut", {}, `${formatCount(count - this.most)} more parts. `, wordButton("Show more", show))
		return line(`more ${this.most}`, build)
	}

	fillTools() {
		const {message, seq} = this.piece.entry
		const raw = wordButton("Raw", () => this.toggleRaw(raw), {
			"aria-expanded": "false",
			"aria-label": `Raw record of message ${seq}`,
		})
		fill(
			this.tools,
			copyButton("Copy", () => textOf(message) || jsonOf(message), `message ${seq}`),
			raw,
		)
	}

	/** @param {HTMLElement} button */
	async toggleRaw(button) {
		const {piece, actions} = this
		const shown = this.querySelector(":scope > .raw")
		button.setAttribute("aria-expanded", String(!shown))
		if (shown) return shown.remove()
		const place = h("div.raw")
		this.append(place)
		const text = await actions.raw(piece).catch(() => jsonOf(piece.entry.message))
		place.append(new CodeBlock().show(text, "record"))
	}
}

/** @param {Entry} entry */
function momentAndTokens({at, message}) {
	const output = objectOr(message.usage).output
	const tokens = typeof output === "number" && output > 0 ? `, ${formatTokens(output)} tokens` : ""
	return `${formatMoment(at ?? 0)}${tokens}`
}

/** @param {string} key @param {() => HTMLElement} build @returns {BodyItem} */
function line(key, build) {
	return {key, version: "", build}
}

/** @param {SentFiles} files */
function fileList(files) {
	return h(
		"ul.files",
		{},
		files.map(({name, bytes}) => h("li", {}, h("bdi", {}, safeLine(name)), ` ${formatBytes(bytes)}`)),
	)
}

/** @param {string} kind @param {string} name @param {string} line @param {() => HTMLElement} inside */
function folded(kind, name, line, inside) {
	const place = h("div.inside")
	const details = h(
		"details",
		{class: kind, ontoggle: () => details.open && place.replaceChildren(inside())},
		h("summary", {}, h("span.name", {}, name), h("bdi.what", {}, line)),
		place,
	)
	return details
}

/** @param {ImagePart} part */
function imageElement({mimeType, data}) {
	const size = formatBytes(Math.floor((data.length * 3) / 4))
	return folded("image", "Image", `${safeLine(mimeType, 40)} ${size}`, () => {
		const image = h("img", {src: `data:${mimeType};base64,${data}`, alt: "An image in the conversation"})
		return image.src ? image : h("p.hint", {}, "This image is of a kind that is not shown.")
	})
}

customElements.define("message-view", MessageView)
