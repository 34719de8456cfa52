import {appendAll, CodeBlock, MOST_SHOWN, showAll} from "./code-block.js"
import {h} from "./element.js"
import {formatBytes} from "./format.js"
import {blocksOf, spansOf} from "./markup.js"
import {cut, safeAddress, safeText} from "./plain-text.js"

export class RichText extends HTMLElement {
	/** @param {string} text */
	show(text) {
		if (text.length <= MOST_SHOWN) {
			this.replaceChildren(...blocksOf(text).map(blockElement))
			return this
		}
		// What is this long is no prose.
		const plain = h("p", {dir: "auto"}, safeText(cut(text, MOST_SHOWN)))
		this.replaceChildren(
			plain,
			showAll(formatBytes(text.length - MOST_SHOWN), () => appendAll(plain, text)),
		)
		return this
	}
}

/** @param {Block} block */
function blockElement(block) {
	switch (block.type) {
		case "heading":
			return h(
				"p",
				{
					class: `heading level-${block.level}`,
					dir: "auto",
					role: "heading",
					"aria-level": Math.min(6, block.level + 1),
				},
				spans(block.text),
			)
		case "code":
			return new CodeBlock().show(block.text, block.language)
		case "quote":
			return h("blockquote", {dir: "auto"}, spans(block.text))
		case "list":
			return listElement(block)
		case "table":
			return tableElement(block.rows)
		case "rule":
			return h("hr")
		default:
			return h("p", {dir: "auto"}, spans(block.text))
	}
}

/** @param {Extract<Block, {type: "list"}>} list */
function listElement({isNumbered, start, items}) {
	const lines = items.map(({depth, text}) => h("li", {"--depth": depth, dir: "auto"}, spans(text)))
	return isNumbered ? h("ol", {start}, lines) : h("ul", {}, lines)
}

/** @param {string[][]} rows */
function tableElement([head = [], ...rows]) {
	const cells = (/** @type {"th" | "td"} */ tag, /** @type {string[]} */ row) =>
		row.map((cell) => h(tag, {dir: "auto"}, spans(cell)))
	return h(
		"div",
		{class: "table", tabindex: 0, role: "group", "aria-label": "Table"},
		h(
			"table",
			{},
			h("thead", {}, h("tr", {}, cells("th", head))),
			h(
				"tbody",
				{},
				rows.map((row) => h("tr", {}, cells("td", row))),
			),
		),
	)
}

/** @param {string} text */
function spans(text) {
	return spansOf(text).map((span) => {
		const shown = safeText(span.text)
		if (span.type === "text") return shown
		if (span.type === "link") return linkElement(shown, span.address)
		return h(span.type, {}, shown)
	})
}

/** @param {string} text @param {string} given */
function linkElement(text, given) {
	const address = safeAddress(given)
	if (address === null) return given === text ? text : `${text} (${safeText(given)})`
	const ask = (/** @type {Event} */ event) => {
		event.preventDefault()
		import("./link-question.js").then(({askToFollow}) => askToFollow(address)).catch(() => {})
	}
	const onkeydown = (/** @type {KeyboardEvent} */ event) => event.key === "Enter" && ask(event)
	return h("span", {role: "link", tabindex: 0, class: "link", title: address, onclick: ask, onkeydown}, text)
}

customElements.define("rich-text", RichText)
