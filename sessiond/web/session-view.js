import {copyButton} from "./copy-button.js"
import {fill, h, wordButton} from "./element.js"
import {MessageComposer} from "./message-composer.js"
import {NowView} from "./now-view.js"
import {safeLine} from "./plain-text.js"
import {OpenQuestions} from "./question-card.js"
import {nameOf, stateOf} from "./session-state.js"
import {stateMark} from "./state-mark.js"
import {runsOf, TranscriptView} from "./transcript-view.js"

export class SessionView extends HTMLElement {
	/** @param {PageContext} page @param {() => void} toFacts */
	constructor(page, toFacts) {
		super()
		this.page = page
		this.key = ""
		this.around = ""
		/** @type {string | undefined} */
		this.asked = undefined
		this.now = new NowView(page)
		this.transcript = new TranscriptView(page)
		const onSent = () => {
			page.open(this.key)
			void this.transcript.showEnd()
		}
		this.composer = new MessageComposer(page, onSent, () => this.transcript.feed?.currentRun ?? "")
		this.questions = new OpenQuestions(this.composer)
		this.heading = h("h1", {tabindex: -1})
		this.state = h("span", {class: "state", role: "status"})
		const fetch = async () => {
			const {fetchMarkdown} = await import("./transcript-markdown.js")
			return fetchMarkdown(page.client, this.key, page.nameOf(this.key))
		}
		this.head = h(
			"div.session-head",
			{},
			wordButton("‹ Sessions", () => page.go(""), {class: "back"}),
			this.heading,
			this.state,
			copyButton("Copy as Markdown", fetch),
			wordButton("Facts", toFacts, {class: "to-facts"}),
		)
		this.append(this.now, this.head, this.transcript, this.questions, this.composer)
		page.list.addEventListener("change", () => this.renderHead())
		void this.show("")
	}

	/** @param {string} key @param {string} [cursor] */
	async show(key, cursor) {
		const {now, head, transcript, composer} = this
		this.key = key
		this.asked = undefined
		const isOpen = key !== ""
		now.hidden = isOpen
		head.hidden = transcript.hidden = composer.hidden = !isOpen
		if (!isOpen) {
			transcript.close()
			now.render()
		}
		const shown = isOpen && transcript.show(key, cursor)
		this.renderHead()
		await shown
	}

	renderHead() {
		const {key, heading, state, questions, composer, transcript, page} = this
		const row = page.list.rows.get(key)
		const name = row ? safeLine(nameOf(row)) : key
		if (heading.textContent !== name) fill(heading, h("bdi", {}, name))
		const keeper = row?.readOnly ? row.source : ""
		const word = row ? `${stateOf(row)} ${keeper}` : ""
		if (state.dataset.word !== word)
			fill(state, row && stateMark(stateOf(row), true), keeper && h("span.hint", {}, `${keeper} keeps it`))
		state.dataset.word = word
		questions.show(page, key)
		if (this.asked !== questions.shown) transcript.readQuestions()
		this.asked = questions.shown
		composer.show(key, row)
		if (row && !document.hidden) page.marks.markRead(key, row.updatedAt)
		const children = page.list.rows.childrenOf(key).map((child) => `${child.key} ${stateOf(child)} ${nameOf(child)}`)
		const around = [key, runsOf(row), ...children].join("\n")
		if (around !== this.around) transcript.render()
		this.around = around
	}
}

customElements.define("session-view", SessionView)
