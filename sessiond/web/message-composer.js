import {confirmButton} from "./confirm-button.js"
import {DroppedFiles} from "./dropped-files.js"
import {button, fill, h, wordButton} from "./element.js"
import {attempt, readOnlyNote} from "./problem-note.js"
import {isLive} from "./session-state.js"

export class MessageComposer extends HTMLElement {
	/** @param {PageContext} page */
	constructor(page) {
		super()
		this.page = page
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
		this.chooser = h("input", {
			type: "file",
			multiple: true,
			hidden: true,
			"aria-label": "Choose files",
			onchange: () => this.addFiles([...(this.chooser.files ?? [])]),
		})
		const attach = wordButton("Attach", () => this.chooser.click())
		this.form = h(
			"div.form",
			{},
			this.problem,
			this.files,
			h("div.line", {}, this.text, attach, this.chooser, this.stopButton, this.steerButton, this.sendButton),
			this.hint,
		)
		this.readOnly = readOnlyNote("send")
		this.append(this.form, this.readOnly)
	}

	/** @param {string} key @param {Row | undefined} row */
	show(key, row) {
		const {page, text} = this
		if (key !== this.key) {
			this.key = key
			text.value = page.marks.draftOf(key)
			this.files.clear()
			fill(this.problem)
			this.fit()
		}
		this.row = row
		const [may, live] = [page.may("send"), row !== undefined && isLive(row)]
		this.form.hidden = !may
		this.readOnly.hidden = may
		this.steerButton.hidden = !live
		this.stopButton.hidden = !live
		text.placeholder = live ? "Send after this run, or steer it" : "Message"
		this.hint.textContent = row?.readOnly
			? `A message goes on in a copy of it; ${row.source} keeps the session as it is.`
			: ""
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
		const {page, key, text, files, sendButton} = this
		const message = text.value
		if (message.trim() === "" || sendButton.disabled) return
		const steer = method === "sessions.steer"
		const params = steer
			? {key, message}
			: {sessionKey: key, message, ...(files.files.length > 0 && {attachments: files.attachments})}
		sendButton.disabled = true
		await attempt(this.problem, "The message was not sent.", async () => {
			const answer = await page.client.call(method, params)
			if (page.marks.draftOf(key) === message) page.marks.keepDraft(key, "")
			// What was written or opened meanwhile stays.
			if (this.key !== key) return
			if (text.value === message) text.value = ""
			if (!steer) files.clear()
			this.typed()
			if (answer.sessionKey && answer.sessionKey !== key) page.open(answer.sessionKey)
		})
		sendButton.disabled = false
	}

	stop() {
		const stop = () => this.page.client.call("chat.abort", {sessionKey: this.key})
		return attempt(this.problem, "The run was not stopped.", stop)
	}

	/** @param {File[]} files */
	async addFiles(files) {
		await attempt(this.problem, "", () => this.files.add(files))
		this.text.focus()
	}

	/** @override */
	focus() {
		this.text.focus()
	}
}

customElements.define("message-composer", MessageComposer)
