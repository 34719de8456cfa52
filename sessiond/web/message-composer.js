import {confirmButton} from "./confirm-button.js"
import {DroppedFiles, fileChooser} from "./dropped-files.js"
import {button, fill, h, wordButton} from "./element.js"
import {formatMoment} from "./format.js"
import {safeText} from "./plain-text.js"
import {attempt, readOnlyNote} from "./problem-note.js"
import {isLive} from "./session-state.js"

const LATE_MS = 1000

export class MessageComposer extends HTMLElement {
	/** @param {PageContext} page @param {() => void} onSent @param {() => string} currentRun */
	constructor(page, onSent, currentRun) {
		super()
		this.page = page
		this.onSent = onSent
		this.currentRun = currentRun
		/** @type {Map<string, {message: string, note: HTMLElement | false, isLate: boolean}>} */
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
		this.unsent = h("div.unsent", {role: "status"})
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
			this.unsent,
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
			text.value = page.marks.draftOf(key).replace(this.underWay(key), "")
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
		const {page, key, row, hint, sending, sendButton, unsent} = this
		const {state} = page.client
		const sent = sending.get(key)
		sendButton.disabled = sent !== undefined
		this.steerButton.disabled = this.stopButton.disabled = state === "away"
		const note = sent && (sent.isLate || state !== "live") && sent.note
		if ((note || null) !== unsent.firstChild) fill(unsent, note)
		const {machine, awaySince, readOnly, source} = row ?? {}
		fill(
			hint,
			state === "away"
				? `The daemon is away. What you wrote is kept${note ? " and sent when it is back" : ""}.`
				: awaySince
					? `${machine} is away since ${formatMoment(awaySince)}. The message is kept and sent when it is back.`
					: machine
						? `The message goes to its agent on ${machine}.`
						: readOnly && `A message goes on in a copy of it; ${source} keeps the session as it is.`,
		)
	}

	typed() {
		this.page.marks.keepDraft(this.key, this.underWay(this.key) + this.text.value)
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
		const message = text.value
		if (message.trim() === "" || sending.has(key)) return
		const [isSteer, stopped] = [method === "sessions.steer", new AbortController()]
		const [attached, read] = isSteer ? [[], {}] : [files.files, files.read()]
		const stop = wordButton("Do not send it", () => stopped.abort())
		const lines = [message, ...attached.map(({name}) => name)].join("\n")
		const note =
			!isSteer && h("div", {}, h("p", {}, safeText(lines)), h("p.hint", {}, "It waits for the daemon. ", stop))
		const sent = {message, note, isLate: false}
		sending.set(key, sent)
		setTimeout(() => {
			sent.isLate = true
			this.showState()
		}, LATE_MS)
		text.value = ""
		files.leaveOut(attached)
		this.typed()
		this.showState()
		const answer = await attempt(this.problem, "The message was not sent.", async () => {
			const params = isSteer ? {key, message} : {sessionKey: key, message, ...(await read)}
			return page.client.call(method, params, {signal: stopped.signal, isPatient: !isSteer})
		})
		const before = this.underWay(key)
		sending.delete(key)
		if (stopped.signal.aborted) fill(this.problem)
		// What was written or opened meanwhile stays.
		if (this.key !== key) {
			if (answer) page.marks.keepDraft(key, page.marks.draftOf(key).replace(before, ""))
			return
		}
		if (!answer) {
			text.value = (before + text.value).trimEnd()
			files.files.unshift(...attached)
			files.render()
		}
		this.typed()
		this.showState()
		if (answer?.sessionKey && answer.sessionKey !== key) page.open(answer.sessionKey)
		else if (answer) this.onSent()
	}

	/** It is a part of the draft: a page that is loaded anew has it. @param {string} key */
	underWay(key) {
		const sent = this.sending.get(key)
		return sent ? `${sent.message}\n\n` : ""
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
