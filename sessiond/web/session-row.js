import {fill, h} from "./element.js"
import {formatAge, formatTokens, modelName} from "./format.js"
import {safeLine} from "./plain-text.js"
import {agentOf, nameOf, STATE_WORDS, stateOf} from "./session-state.js"
import {stateMark} from "./state-mark.js"

export class SessionRow extends HTMLElement {
	/** @param {SessionLine} line @param {Look} look */
	show(line, {now, isUnread, isSelected}) {
		const {row, depth, below, isOpen, failedBelow} = line
		const state = stateOf(row)
		this.setAttribute("role", "treeitem")
		this.setAttribute("aria-level", String(depth + 2))
		this.setAttribute("aria-selected", String(isSelected))
		if (below > 0) this.setAttribute("aria-expanded", String(isOpen))
		else this.removeAttribute("aria-expanded")
		this.className = `${isUnread ? "unread" : ""} ${isSelected ? "selected" : ""}`
		this.style.setProperty("--depth", String(Math.min(depth, 6)))
		fill(
			this,
			h("span", {class: "twisty", "aria-hidden": "true"}, below > 0 ? "›" : ""),
			stateMark(state),
			h("bdi.title", {}, safeLine(nameOf(row))),
			isUnread && h("span.unseen", {}, ", unread"),
			h("span.age", {}, formatAge(row.updatedAt, now)),
			h("span.meta", {}, ...metaOf(line, state, below, failedBelow)),
		)
		return this
	}
}

/** @param {SessionLine} line @param {SessionState} state @param {number} below @param {number} failed */
function metaOf({row, isOpen, place}, state, below, failed) {
	const isLoud = state !== "idle" && state !== "done"
	const tokens = (row.inputTokens ?? 0) + (row.outputTokens ?? 0)
	const words = [
		isLoud && h("span", {class: `word ${state}`, "aria-hidden": "true"}, wordOf(row, state)),
		failed > 0 && h("span.word.error", {}, `${failed} below failed`),
		place && h("bdi", {}, safeLine(place, 40)),
		row.source === "sessiond" ? agentOf(row) : row.source,
		row.model && safeLine(modelName(row.model), 32),
		tokens && `${formatTokens(tokens)} tok`,
		below > 0 && !isOpen && `${below} below`,
	]
	return words.filter(Boolean).flatMap((word, at) => (at === 0 ? [word] : [" · ", word]))
}

/** @param {Row} row @param {SessionState} state */
function wordOf(row, state) {
	if (state === "waiting" && row.waiting?.title) return `waits: ${safeLine(row.waiting.title, 60)}`
	return state === "error" && row.status === "timeout" ? "took too long" : STATE_WORDS[state]
}

/** @param {SessionLine} line @param {Look} look */
export function versionOfRow({row, depth, below, isOpen, failedBelow, place}, {now, isUnread, isSelected}) {
	const {status, waiting, model, source, inputTokens, outputTokens, updatedAt} = row
	const shown = [nameOf(row), stateOf(row), status, waiting?.title, formatAge(updatedAt, now), model, source]
	return [...shown, inputTokens, outputTokens, depth, below, isOpen, failedBelow, place, isUnread, isSelected].join()
}

customElements.define("session-row", SessionRow)
