import {CodeBlock} from "./code-block.js"
import {DiffView} from "./diff-view.js"
import {fill, h} from "./element.js"
import {formatDuration} from "./format.js"
import {countChanges, diffLines, patchLines} from "./line-diff.js"
import {resultOf} from "./message-parts.js"
import {changesOf, detailsOf, summarizeCall, toolName} from "./tool-summary.js"

// Of lines to compare for the summary.
const MOST_PAIRS = 20_000

export class ToolCall extends HTMLElement {
	constructor() {
		super()
		/** @type {Call | null} */
		this.call = null
		this.outcome = h("span.outcome")
		this.summary = h("summary")
		this.inside = h("div.inside")
		this.details = h("details", {ontoggle: () => this.fillInside()}, this.summary, this.inside)
	}

	/** @param {Call} call */
	show(call) {
		const isFirst = this.call === null
		const resultChanged = this.call?.result?.cursor !== call.result?.cursor
		this.call = call
		if (isFirst) {
			const what = h("bdi.what", {}, summarizeCall(call.args))
			this.summary.append(h("bdi.name", {}, toolName(call.name)), what, sizeOf(call.args), this.outcome)
			this.append(this.details)
		}
		this.showOutcome(call)
		if (resultChanged && this.details.open) this.fillInside()
		return this
	}

	/** @param {Call} call */
	showOutcome({result, at, isLive}) {
		const found = result && resultOf(result.message)
		const took = result?.at && at && result.at > at ? ` ${formatDuration(result.at - at)}` : ""
		const [kind, word = kind] = found
			? found.isError
				? ["error", "failed"]
				: ["ok"]
			: isLive
				? ["running"]
				: ["open", "no result"]
		this.outcome.className = `outcome ${kind}`
		this.outcome.textContent = word + took
	}

	/** A transcript may have thousands that nobody opens. */
	fillInside() {
		const {call} = this
		if (!call || !this.details.open) return
		const changes = changesOf(call.args)
		const details = changes.length === 0 && detailsOf(call.args)
		const found = call.result && resultOf(call.result.message)
		fill(
			this.inside,
			changes.map((change) => new DiffView().show(change)),
			details && new CodeBlock().show(details, "call"),
			found?.text
				? new CodeBlock().show(found.text, found.isError ? "error" : "result")
				: found && h("p.hint", {}, "It answered nothing."),
		)
	}
}

/** @param {unknown} args */
function sizeOf(args) {
	const changes = changesOf(args)
	if (changes.length === 0) return ""
	let [added, removed, pairs] = [0, 0, 0]
	for (const change of changes) {
		if (!("patch" in change)) pairs += change.before.split("\n").length * change.after.split("\n").length
		if (pairs > MOST_PAIRS) return ""
		const counted = countChanges("patch" in change ? patchLines(change.patch) : diffLines(change.before, change.after))
		added += counted.added
		removed += counted.removed
	}
	return h("span.size", {}, h("span.added", {}, `+${added}`), " ", h("span.removed", {}, `−${removed}`))
}

customElements.define("tool-call", ToolCall)
