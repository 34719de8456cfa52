import {copyButton} from "./copy-button.js"
import {h, wordButton} from "./element.js"
import {formatBytes} from "./format.js"
import {cut, safeLine, safeText} from "./plain-text.js"

// Laying out megabytes takes seconds.
export const MOST_SHOWN = 64 * 1024
const PIECE = 256 * 1024

export class CodeBlock extends HTMLElement {
	/** @param {string} text @param {string} [named] */
	show(text, named = "") {
		this.classList.toggle("error", named === "error")
		const language = safeLine(named, 40)
		const isLong = text.length > MOST_SHOWN
		const code = h("code", {}, safeText(isLong ? cut(text, MOST_SHOWN) : text))
		const pre = h("pre", {dir: "ltr", tabindex: 0, role: "group", "aria-label": language || "text"}, code)
		const label = h("span.language", {}, language)
		this.replaceChildren(
			h(
				"div.code-head",
				{},
				label,
				copyButton("Copy", () => text, language || "text"),
			),
			pre,
		)
		if (isLong) this.append(showAll(formatBytes(text.length - MOST_SHOWN), () => appendAll(code, text)))
		return this
	}
}

/** @param {string} more @param {() => void} show */
export function showAll(more, show) {
	const all = () => {
		line.remove()
		show()
	}
	const line = h("p.cut", {}, `${more} more. `, wordButton("Show all", all))
	return line
}

/** @param {Element} place @param {string} text */
export function appendAll(place, text) {
	let from = cut(text, MOST_SHOWN).length
	const step = () => {
		const piece = cut(text.slice(from, from + PIECE + 1), PIECE)
		if (piece === "" || !place.isConnected) return
		place.append(safeText(piece))
		from += piece.length
		requestAnimationFrame(step)
	}
	step()
}

customElements.define("code-block", CodeBlock)
