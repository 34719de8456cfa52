import {button, h, keepChildren} from "./element.js"
import {formatMoment, formatPast} from "./format.js"
import {safeLine, safeText} from "./plain-text.js"
import {attempt, readOnlyNote} from "./problem-note.js"

// Who aims at a button hits none that has just come to its place.
const SETTLING_MS = 500
// A label is the agent's own: what it does is said beside it.
const KINDS = {
	allow_once: "allows it once",
	allow_always: "allows it always",
	reject_once: "refuses it once",
	reject_always: "refuses it always",
}

class QuestionCard extends HTMLElement {
	isAnswering = false

	/** @param {PageContext} page @param {Question} question @param {OpenQuestions} among */
	constructor(page, question, among) {
		super()
		this.page = page
		this.among = among
		this.tabIndex = -1
		this.problem = h("div")
		this.note = h("input", {"aria-label": "Note", placeholder: "Note to the agent", maxlength: 1000})
		const {id, sessionKey, title, detail, options, readOnly, askedAt, expiresAt} = question
		const press = (/** @type {MouseEvent} */ {detail: clicks}, /** @type {string} */ optionId) => {
			if (clicks === 0 || performance.now() - among.changedAt > SETTLING_MS) void this.answer(id, optionId)
		}
		const may = page.may("answer")
		const command = `sessiond answer ${id.slice(0, 8)}`
		const choices = options.map(({id: optionId, label, kind}) => {
			const words = h("span", {}, h("bdi", {}, safeLine(label)), h("span.hint", {}, KINDS[kind]))
			return may ? button(words, (event) => press(event, optionId)) : words
		})
		this.append(
			h("h2", {}, h("bdi", {}, safeLine(title ?? "A question"))),
			h(
				"p.hint",
				{},
				among.key === undefined && page.linkTo(sessionKey),
				` asked ${formatPast(askedAt, Date.now())}${expiresAt ? `, until ${formatMoment(expiresAt)}` : ""}`,
			),
			detail ? h("pre", {tabindex: 0, role: "group", "aria-label": "Details"}, safeText(detail)) : "",
			h("div.options", {}, choices),
			readOnly
				? h("p.hint", {}, `Only ${sessionKey.split("/")[0]} takes the answer: ${command}`)
				: may
					? this.note
					: readOnlyNote("answer", ` Or: ${command}`),
			this.problem,
		)
	}

	/** @param {string} id @param {string} optionId */
	async answer(id, optionId) {
		const {page, note} = this
		if (this.isAnswering) return
		this.isAnswering = true
		// The stream may be quicker than the answer.
		this.among.answered = this.contains(document.activeElement)
		const isDone = await attempt(this.problem, "It was not answered.", async () => {
			await page.client.call("questions.answer", {id, optionId, note: note.value.trim() || null})
			page.list.closeQuestion(id)
			return true
		})
		this.among.answered &&= isDone === true
		this.isAnswering = false
	}
}

export class OpenQuestions extends HTMLElement {
	changedAt = 0
	shown = ""
	/** @type {string | undefined} */
	key
	answered = false

	/** @param {HTMLElement} next */
	constructor(next) {
		super()
		this.next = next
	}

	/** @param {PageContext} page @param {string} [key] */
	show(page, key) {
		const open = [...page.list.questions.values()].filter(({sessionKey}) => key === undefined || sessionKey === key)
		open.length = Math.min(open.length, 50)
		const shown = open.map(({id}) => id).join()
		this.ariaLive = "polite"
		if (shown === this.shown) return
		this.shown = shown
		this.key = key
		this.changedAt = performance.now()
		keepChildren(this, open, {
			key: ({id}) => id,
			version: () => "",
			build: (question) => new QuestionCard(page, question, this),
			update: () => {},
		})
		if (!this.answered || document.activeElement !== document.body) return
		// Not a button: a key may still be down.
		const next = /** @type {HTMLElement} */ (this.firstElementChild ?? this.next)
		next.focus()
		this.answered = false
	}

	/** @override */
	focus() {
		this.querySelector("button")?.focus()
	}
}

customElements.define("question-card", QuestionCard)
customElements.define("open-questions", OpenQuestions)
