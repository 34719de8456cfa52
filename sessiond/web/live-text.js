import {h, keepChildren} from "./element.js"
import {safeText} from "./plain-text.js"
import {RichText} from "./rich-text.js"
import {ToolCall} from "./tool-call.js"

export class LiveText extends HTMLElement {
	constructor() {
		super()
		this.text = ""
		this.built = 0
		this.blocks = h("div")
		this.rest = h("p", {dir: "auto"})
		this.tools = h("div")
		this.body = h("div.body", {}, this.blocks, this.rest, this.tools)
		this.margin = h("div.margin", {}, h("span.who", {}, "Agent"), h("span.now", {}, "now"))
	}

	/** @param {string} text @param {LiveTool[]} tools */
	show(text, tools) {
		this.hidden = text === "" && tools.length === 0
		if (!this.body.isConnected) this.append(this.margin, this.body)
		if (!text.startsWith(this.text)) this.clear()
		this.text = text
		const whole = wholeUpTo(text, this.built)
		if (whole > this.built) {
			this.blocks.append(new RichText().show(text.slice(this.built, whole)))
			this.built = whole
		}
		const rest = safeText(text.slice(this.built))
		// Nothing selected is lost.
		const node = this.rest.firstChild
		if (node instanceof Text && rest.startsWith(node.data)) node.appendData(rest.slice(node.data.length))
		else this.rest.textContent = rest
		this.showTools(tools)
	}

	/** @param {LiveTool[]} tools */
	showTools(tools) {
		const call = (/** @type {LiveTool} */ {phase, ...tool}) => ({
			...tool,
			at: null,
			result: undefined,
			isLive: phase !== "end",
		})
		keepChildren(this.tools, tools, {
			key: ({id}) => id,
			version: ({phase}) => phase,
			build: (tool) => new ToolCall().show(call(tool)),
			update: (node, tool) => node.show(call(tool)),
		})
	}

	clear() {
		this.blocks.replaceChildren()
		this.built = 0
	}
}

/** @param {string} text @param {number} from */
function wholeUpTo(text, from) {
	let [at, end, fence] = [from, from, ""]
	for (;;) {
		const newline = text.indexOf("\n", at)
		if (newline < 0) return end
		const line = text.slice(at, newline)
		const mark = /^ {0,3}(`{3,}|~{3,})/.exec(line)?.[1] ?? ""
		if (fence !== "") fence = mark.startsWith(fence) ? "" : fence
		else if (mark !== "") fence = mark
		at = newline + 1
		if (fence === "" && line.trim() === "") end = at
	}
}

customElements.define("live-text", LiveText)
