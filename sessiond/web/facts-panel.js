import {confirmButton} from "./confirm-button.js"
import {copyButton} from "./copy-button.js"
import {button, fill, h, wordButton} from "./element.js"
import {
	formatAge,
	formatCost,
	formatCount,
	formatDuration,
	formatMoment,
	formatPast,
	formatPlural,
	formatTokens,
} from "./format.js"
import {safeLine} from "./plain-text.js"
import {attempt} from "./problem-note.js"
import {resumeCommand} from "./resume-command.js"
import {agentOf, isLive, nameOf, stateOf} from "./session-state.js"
import {stateMark} from "./state-mark.js"

export class FactsPanel extends HTMLElement {
	/** @param {PageContext} page @param {() => void} close */
	constructor(page, close) {
		super()
		this.page = page
		this.setAttribute("role", "region")
		this.setAttribute("aria-label", "Facts")
		this.key = ""
		this.version = ""
		this.facts = h("dl")
		this.relatives = h("div.relatives")
		this.graph = h("div")
		this.actions = h("div.actions")
		this.problem = h("div")
		const back = wordButton("‹ Back", close, {class: "back"})
		this.append(back, h("h1.unseen", {}, "Facts"), this.facts, this.relatives, this.graph, this.actions, this.problem)
		page.list.addEventListener("change", () => this.render())
		page.client.addEventListener("state", () => this.showState())
		this.render()
	}

	/** @param {string} key */
	show(key) {
		if (key === this.key) return
		this.key = key
		this.version = ""
		// What fails now is about another session.
		const problem = h("div")
		this.problem.replaceWith(problem)
		this.problem = problem
		fill(this.actions)
		fill(this.graph)
		this.render()
	}

	/** @param {string} key */
	async showGraph(key) {
		const {ExchangeGraph} = await import("./exchange-graph.js")
		if (key === "" || key !== this.key) return
		const graph = new ExchangeGraph(this.page)
		fill(this.graph, graph)
		void graph.show(key)
	}

	render() {
		const {page, key, facts, relatives, actions} = this
		const row = page.list.rows.get(key)
		this.classList.toggle("nothing", !row)
		if (!row || !key) return fill(facts)
		const family = [
			row.spawnedBy,
			row.continues,
			row.forkedFrom,
			...page.list.rows.childrenOf(key).map((child) => `${child.key} ${stateOf(child)}`),
		]
		const version = JSON.stringify([row, family, formatAge(row.updatedAt, Date.now())])
		if (version === this.version) return
		const isTouched = actions.contains(document.activeElement)
		this.version = version
		fill(facts, ...factsOf(row).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]))
		fill(relatives, ...this.relativesOf(key, row))
		if (!isTouched) fill(actions, ...this.actionsOf(key, row))
		this.showState()
	}

	showState() {
		for (const button of this.querySelectorAll(".danger"))
			button.toggleAttribute("disabled", this.page.client.state === "away")
	}

	/** @param {string} key @param {Row} row */
	relativesOf(key, row) {
		const {page} = this
		const link = (/** @type {string} */ other) => {
			const known = page.list.rows.get(other)
			return h("li", {}, known ? stateMark(stateOf(known)) : null, page.linkTo(other))
		}
		const list = (/** @type {string} */ name, /** @type {(string | undefined)[]} */ keys) => {
			const there = keys.filter((one) => one !== undefined)
			return there.length > 0 ? [h("h2", {}, name), h("ul", {}, there.map(link))] : []
		}
		const children = page.list.rows.childrenOf(key).map((child) => page.list.rows.keyOf(child))
		return [
			...list("Parent", [row.spawnedBy]),
			...list("Sub-agents", children.slice(-30)),
			...list("Goes on with", [row.continues]),
			...list("A copy of", [row.forkedFrom]),
		]
	}

	/** @param {string} key @param {Row} row */
	actionsOf(key, row) {
		const {page} = this
		const isOurs = !row.readOnly && page.may("admin")
		const command = resumeCommand(row)
		return [
			command && h("h2", {}, "Go on in a terminal"),
			command &&
				h(
					"div.command",
					{},
					h("code", {dir: "ltr"}, safeLine(command)),
					copyButton("Copy", () => command, "the command"),
				),
			isOurs && this.labelField(key, row),
			isOurs && h("div.dangers", {}, ...this.dangers(key, row)),
		]
	}

	/** @param {string} key @param {Row} row */
	labelField(key, row) {
		const input = h("input", {
			value: safeLine(row.label ?? "", 512),
			"aria-label": "Label",
			placeholder: "Label",
			maxlength: 512,
			autocomplete: "off",
		})
		const save = () => this.act("The label was not kept.", "sessions.patch", {key, label: input.value.trim() || null})
		return h("div.label", {}, input, button("Set label", save))
	}

	/** @param {string} key @param {Row} row */
	dangers(key, row) {
		const runs = isLive(row) || this.page.list.rows.childrenOf(key).some(isLive)
		const dropped = row.queuedRuns ? `; ${formatPlural(row.queuedRuns, "waiting message")} dropped` : ""
		const danger = (/** @type {string} */ word, /** @type {string} */ question, /** @type {string} */ past) => {
			const act = () => this.act(`It was not ${past}.`, `sessions.${word.toLowerCase()}`, {key})
			return confirmButton(word, question + dropped, act, {class: "danger"})
		}
		return [
			runs && danger("Kill", "Kill it and all below?", "killed"),
			danger("Reset", "Begin anew? The transcript is archived", "reset"),
			row.kind !== "main" && danger("Delete", "Delete? The transcript is archived", "deleted"),
		]
	}

	/** @param {string} what @param {string} method @param {Record<string, unknown>} params */
	async act(what, method, params) {
		await attempt(this.problem, what, () => this.page.client.call(method, params))
		if (document.activeElement instanceof HTMLElement) document.activeElement.blur()
	}
}

/** @param {Row} row */
function factsOf(row) {
	const now = Date.now()
	const path = (/** @type {string} */ text) => [
		h("span", {class: "path", title: safeLine(text, 1000)}, h("bdi", {dir: "ltr"}, safeLine(text))),
		copyButton("Copy", () => text, "the path"),
	]
	const most = row.contextTokens ? ` of ${formatTokens(row.contextTokens)}` : ""
	const context = row.totalTokens && formatTokens(row.totalTokens) + most
	const {inputTokens = 0, outputTokens = 0} = row
	const sums = inputTokens + outputTokens && `${formatTokens(inputTokens)} in, ${formatTokens(outputTokens)} out`
	return /** @type {[string, Child | Child[]][]} */ ([
		["State", stateMark(stateOf(row), true)],
		["Title", row.label && row.title && h("bdi", {}, safeLine(row.title))],
		["Task", row.task && row.task !== nameOf(row) && h("bdi", {}, safeLine(row.task))],
		["Program", row.source !== "sessiond" && row.source],
		["Agent", agentOf(row)],
		["Folder", row.cwd && path(row.cwd)],
		["Model", row.model && safeLine(row.model)],
		["Context", context],
		["Tokens", sums],
		["Cost", row.estimatedCostUsd && formatCost(row.estimatedCostUsd)],
		["Messages", row.messageCount && formatCount(row.messageCount)],
		["Last run", row.runtimeMs && formatDuration(row.runtimeMs)],
		["Sandbox", row.sandboxed && "yes"],
		["Began", h("time", {title: formatMoment(row.createdAt)}, formatPast(row.createdAt, now))],
		["Last message", h("time", {title: formatMoment(row.updatedAt)}, formatPast(row.updatedAt, now))],
		["Key", path(row.key)],
		["File", path(row.transcriptPath)],
	]).filter(([, value]) => value)
}

customElements.define("facts-panel", FactsPanel)
