import {fill, h, nextFrame, wordButton} from "./element.js"
import {client, firstRows, signedIn} from "./first-look.js"
import {safeLine} from "./plain-text.js"
import {problemNote} from "./problem-note.js"
import {ReadingMarks} from "./reading-marks.js"
import {SessionList} from "./session-list.js"
import {nameOf} from "./session-state.js"
import {SessionTree} from "./session-tree.js"

const MINUTE_MS = 60_000
// A longer one fires at once.
const LONGEST_TIMER_MS = 2 ** 31 - 1

/** @param {string} id */
export const place = (id) => /** @type {HTMLElement} */ (document.getElementById(id))

async function begin() {
	for (const sheet of document.querySelectorAll("link")) sheet.disabled = false
	try {
		await signedIn
	} catch (problem) {
		return askToSignIn(problem)
	}
	const list = new SessionList(client, nextFrame)
	const page = new PageContext(client, list, new ReadingMarks(localStorage, sessionStorage))
	const tree = new SessionTree(page)
	fill(place("columns"), h("nav", {"aria-label": "Sessions"}, tree))
	document.addEventListener("visibilitychange", () => (document.hidden ? client.pause() : client.resume()))
	shareConnections()
	// A stream that is open does not tell that its token is over.
	const reopen = () => {
		client.pause()
		client.resume()
	}
	setTimeout(reopen, Math.min((client.caller.expiresAt ?? Infinity) - Date.now(), LONGEST_TIMER_MS))
	setInterval(() => !document.hidden && list.tell(), MINUTE_MS)
	const showRest = async () => {
		if (client.state === "refused" && list.rows.size === 0) return askToSignIn({type: "unauthenticated"})
		try {
			;new (await import("./page-views.js")).PageViews(page, tree)
		} catch (problem) {
			// A browser may keep to its failure: the page begins anew.
			if (!(problem instanceof TypeError)) throw problem
			client.addEventListener("state", () => client.state === "live" && location.reload())
		}
	}
	// Not before the first rows, whose way it would be in.
	const rowsOrTrouble = new Promise((resolve) => {
		list.addEventListener("change", resolve, {once: true})
		firstRows.catch(resolve)
	})
	list.start(firstRows)
	await rowsOrTrouble
	await showRest()
}

/** A browser has six: the two windows that were looked at last have streams. */
function shareConnections() {
	const windows = new BroadcastChannel("sessiond")
	const later = new Set()
	const own = Math.random()
	const look = () => {
		later.clear()
		client.resume()
		windows.postMessage(own)
	}
	windows.onmessage = ({data}) => later.add(data).size > 1 && client.pause()
	addEventListener("focus", look)
	look()
}

/** @param {unknown} problem */
function askToSignIn(problem) {
	const how = /** @type {any} */ (problem)?.type === "unauthenticated" ? {} : {again: () => location.reload()}
	const note = h(
		"div.sign-in",
		{},
		h("h1", {}, "sessiond"),
		h("p", {}, "This page opens with a code that is good once, for 30 seconds. Ask for one in a terminal:"),
		h("pre", {}, "sessiond web"),
		h("p.hint", {}, "It reads. With --write it may send, spawn and answer, with --admin do everything."),
		problemNote(problem, how),
	)
	fill(place("columns"), note)
}

/** Tells `open`: a session, perhaps at a place in it. */
export class PageContext extends EventTarget {
	/** @param {Client} client @param {SessionList} list @param {ReadingMarks} marks */
	constructor(client, list, marks) {
		super()
		this.client = client
		this.list = list
		this.marks = marks
	}

	/** @param {Scope} scope */
	may(scope) {
		return this.client.may(scope)
	}

	/** @param {string} key @param {string} [cursor] */
	open(key, cursor) {
		if (!this.list.rows.get(key)) this.list.find(key).catch(() => {})
		const address = `#/session/${encodeURIComponent(key)}`
		const state = cursor ?? null
		if (location.hash !== address || history.state !== state) history.pushState(state, "", address)
		this.dispatchEvent(new Event("open"))
	}

	/** @param {string} address */
	go(address) {
		location.hash = `#/${address}`
	}

	takeAddress() {
		const [, view = "", rest = ""] = /^#\/([a-z]*)\/?(.*)$/.exec(location.hash) ?? []
		return {view, key: view === "session" ? decoded(rest) : "", cursor: history.state ?? undefined}
	}

	/** @param {string} key @param {Props} [props] */
	linkTo(key, props) {
		return wordButton(h("bdi", {}, this.nameOf(key)), () => this.open(key), props)
	}

	/** @param {string} key */
	nameOf(key) {
		const row = this.list.rows.get(key)
		return row ? safeLine(nameOf(row)) : safeLine(key)
	}
}

/** @param {string} text */
function decoded(text) {
	try {
		return decodeURIComponent(text)
	} catch {
		return text
	}
}

void begin()
