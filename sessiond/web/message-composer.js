import {confirmButton} from "./confirm-button.js"
import {DroppedFiles, fileChooser} from "./dropped-files.js"
import {button, fill, h, wordButton} from "./element.js"
import {attempt, readOnlyNote} from "./problem-note.js"
import {isLive} from "./session-state.js"

export class MessageComposer extends HTMLElement {
	/** @param {PageContext} page @param {() => void} onSent @param {() => string} currentRun */
	constructor(page, onSent, currentRun) {
		super()
		this.page = page
		this.onSent = onSent
		this.currentRun = currentRun
		/** @type {Map<string, AbortController>} */
		this.sending = new Map()
		this.key = ""
		/** @type {Row | undefined} */
		this.row = undefined
		this.text = h("textarea", {
			rows: 1,
			"aria-label": "Message",
			oninput: () => this.typed(),
			onkeydown: (event) => this.keyed(event),
		})
		this.files = new DroppedFiles()
		this.problem = h("div")
		this.hint = h("span.hint")
		this.sendButton = button("Send", () => this.send("chat.send"), {class: "primary"})
		this.steerButton = button("Steer", () => this.send("sessions.steer"))
		this.stopButton = confirmButton("Stop", "Stop the run?", () => this.stop())
		const chooser = fileChooser((files) => this.addFiles(files), {hidden: true, "aria-label": "Choose files"})
		const attach = wordButton("Attach", () => chooser.click())
		this.form = h(
			"div.form",
			{},
			this.problem,
			this.files,
			h("div.line", {}, this.text, attach, chooser, this.stopButton, this.steerButton, this.sendButton),
			this.hint,
		)
		this.readOnly = readOnlyNote("send")
		this.append(this.form, this.readOnly)
		page.client.addEventListener("state", () => this.showState())
	}

	/** @param {string} key @param {Row | undefined} row */
	show(key, row) {
		const {page, text} = this
		if (key !== this.key) {
			this.key = key
			text.value = page.marks.draftOf(key)
			this.files.leaveOut()
			// What fails now is about another session.
			const problem = h("div")
			this.problem.replaceWith(problem)
			this.problem = problem
			this.stopButton.calm()
			this.fit()
		}
		this.row = row
		const [may, live] = [page.may("send"), row !== undefined && isLive(row)]
		this.form.hidden = !may
		this.readOnly.hidden = may
		this.steerButton.hidden = !live
		this.stopButton.hidden = !live
		text.placeholder = live ? "Send after this run, or steer it" : "Message"
		this.showState()
	}

	showState() {
		const {page, key, row, hint, sending, sendButton} = this
		const sent = sending.get(`chat.send ${key}`)
		sendButton.disabled = sent !== undefined
		if (page.client.state === "away") {
			const stop = sent && wordButton("Do not send it", () => sent.abort())
			fill(hint, `The daemon is away. What you wrote is kept${sent ? " and sent when it is back. " : "."}`, stop)
		} else if (row?.readOnly) fill(hint, `A message goes on in a copy of it; ${row.source} keeps the session as it is.`)
		else fill(hint)
	}

	typed() {
		this.page.marks.keepDraft(this.key, this.text.value)
		this.fit()
	}

	fit() {
		const {text} = this
		text.rows = Math.min(12, Math.max(1, text.value.split("\n").length + Math.floor(text.value.length / 100)))
	}

	/** @param {KeyboardEvent} event */
	keyed(event) {
		if (event.key !== "Enter" || event.shiftKey || event.isComposing) return
		event.preventDefault()
		this.send("chat.send")
	}

	/** @param {"chat.send" | "sessions.steer"} method */
	async send(method) {
		const {page, key, text, files, sending} = this
		const [message, id] = [text.value, `${method} ${key}`]
		if (message.trim() === "" || sending.has(id)) return
		const [isSteer, sent, stopped] = [method === "sessions.steer", files.files, new AbortController()]
		sending.set(id, stopped)
		this.showState()
		await attempt(this.problem, "The message was not sent.", async () => {
			const params = isSteer ? {key, message} : {sessionKey: key, message, ...(await files.read())}
			const answer = await page.client.call(method, params, {signal: stopped.signal, isPatient: !isSteer})
			if (page.marks.draftOf(key) === message) page.marks.keepDraft(key, "")
			// What was written or opened meanwhile stays.
			if (this.key !== key) return
			if (text.value === message) text.value = ""
			if (!isSteer) files.leaveOut(sent)
			this.typed()
			if (answer.sessionKey && answer.sessionKey !== key) page.open(answer.sessionKey)
			else this.onSent()
		})
		sending.delete(id)
		if (stopped.signal.aborted) fill(this.problem)
		this.showState()
	}

	stop() {
		return attempt(this.problem, "The run was not stopped.", async () => {
			// Without its id those that wait would be stopped, too.
			const params = {sessionKey: this.key, runId: this.currentRun()}
			if (!(await this.page.client.call("chat.abort", params)).aborted) throw new Error("It has ended by itself.")
		})
	}

	/** @param {File[]} files */
	addFiles(files) {
		void attempt(this.problem, "", async () => this.files.add(files))
		this.text.focus()
	}

	/** @override */
	focus() {
		this.text.focus()
	}
}

customElements.define("message-composer", MessageComposer)
