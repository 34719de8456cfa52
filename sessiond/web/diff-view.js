import {showAll} from "./code-block.js"
import {copyButton} from "./copy-button.js"
import {h} from "./element.js"
import {countChanges, diffLines, foldKept, patchLines} from "./line-diff.js"
import {safeLine, safeText} from "./plain-text.js"

const MOST_LINES = 400
const KINDS = {"+": "added", "-": "removed", "@": "place", " ": "kept"}

export class DiffView extends HTMLElement {
	/** @param {Change} change */
	show(change) {
		const lines = "patch" in change ? patchLines(change.patch) : foldKept(diffLines(change.before, change.after))
		const {added, removed} = countChanges(lines)
		const text = "patch" in change ? change.patch : change.after
		const shown = h("div", {
			class: "diff-lines",
			tabindex: 0,
			role: "group",
			"aria-label": `Changes of ${safeLine(change.path) || "files"}`,
		})
		shown.append(...lines.slice(0, MOST_LINES).map(lineElement))
		this.replaceChildren(
			h(
				"div.code-head",
				{},
				h("bdi.path", {}, safeLine(change.path)),
				h("span.added", {}, `+${added}`),
				h("span.removed", {}, `−${removed}`),
				copyButton("Copy", () => text, "the new text"),
			),
			shown,
		)
		const show = () => shown.append(...lines.slice(MOST_LINES, MOST_LINES * 25).map(lineElement))
		if (lines.length > MOST_LINES) this.append(showAll(`${lines.length - MOST_LINES} lines`, show))
		return this
	}
}

/** @param {DiffLine} line */
function lineElement({sign, text}) {
	const kind = KINDS[sign]
	const mark = h(
		"span",
		{class: "sign", "aria-label": /[+-]/.test(sign) && kind},
		sign === "@" ? "⋯" : sign === "-" ? "−" : sign,
	)
	return h(
		"div",
		{class: `diff-line ${kind}`},
		mark,
		h("span", {dir: "ltr"}, safeText(text.slice(0, 2000)) || "\u200b"),
	)
}

customElements.define("diff-view", DiffView)
