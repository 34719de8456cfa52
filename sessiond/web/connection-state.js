import {confirmButton} from "./confirm-button.js"
import {fill, h, wordButton} from "./element.js"
import {formatPast, formatPlural} from "./format.js"

/** @type {Record<string, [string, string]>} */
const WORDS = {
	connecting: ["Connecting", ""],
	live: ["Live", ""],
	reconnecting: ["Reconnecting", "What you see may be older."],
	away: ["Daemon away", "`sessiond status` says whether it runs. The page goes on by itself."],
	refused: ["Signed out", "Run `sessiond web` again."],
}

export class ConnectionState extends HTMLElement {
	/** @param {PageContext} page @param {() => void} toQuestion */
	constructor(page, toQuestion) {
		super()
		this.page = page
		this.shown = ""
		this.state = h("span", {class: "state", role: "status"})
		this.facts = h("span.facts")
		this.waits = wordButton("", toQuestion, {class: "word waiting"})
		this.retry = wordButton("Try now", () => page.client.retry())
		const rights = page.may("admin") ? "may do everything" : page.may("send") ? "may read and write" : "may read"
		const leave = confirmButton("Sign out", "Sign out here?", () => page.client.close().catch(() => {}), {
			class: "quiet",
		})
		this.append(this.waits, this.state, this.retry, this.facts, h("span.rights", {}, `This page ${rights}`), leave)
		page.client.addEventListener("state", () => this.render())
		page.list.addEventListener("change", () => this.render())
		this.render()
	}

	render() {
		const {page, state, facts, retry} = this
		const {client, list} = page
		const [word, sentence] = WORDS[client.state] ?? [client.state, ""]
		this.className = client.state
		if (this.shown !== client.state)
			fill(state, h("span", {class: "dot", "aria-hidden": "true"}), h("strong", {}, word), sentence && ` ${sentence}`)
		this.shown = client.state
		retry.hidden = !["reconnecting", "away"].includes(client.state)
		const {length} = list.waiting
		this.waits.hidden = !length
		this.waits.textContent = `${length} ${length === 1 ? "waits" : "wait"} for you`
		const newest = Math.max(0, ...[...list.rows.byKey.values()].map(({updatedAt}) => updatedAt))
		const more = list.olderCursor === null ? "" : " and older ones"
		const count = `${formatPlural(list.rows.size, "session")}${more}`
		facts.textContent = list.rows.size === 0 ? "" : `${count}, newest message ${formatPast(newest, Date.now())}`
	}
}

customElements.define("connection-state", ConnectionState)
