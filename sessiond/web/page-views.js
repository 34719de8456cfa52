import {ConnectionState} from "./connection-state.js"
import {listenForFiles} from "./dropped-files.js"
import {button, h, wordButton} from "./element.js"
import {FactsPanel} from "./facts-panel.js"
import {place} from "./page.js"
import {SessionView} from "./session-view.js"
import {listen} from "./shortcuts.js"

export class PageViews {
	/** @param {PageContext} page @param {SessionTree} tree */
	constructor(page, tree) {
		this.page = page
		this.tree = tree
		this.columns = place("columns")
		this.middle = h("div.middle")
		this.session = new SessionView(page, () => this.show(this.shown === "facts" ? "session" : "facts"))
		this.facts = new FactsPanel(page, () => this.show("session"))
		this.usage = once(async () => new (await import("./usage-view.js")).UsageView(page), this.middle)
		this.search = once(async () => new (await import("./search-box.js")).SearchBox(page), document.body)
		this.spawn = once(async () => new (await import("./spawn-form.js")).SpawnForm(page), document.body)
		this.shown = ""
		this.current = ""
		/** @type {string | undefined} */
		this.cursor = undefined
		this.middle.append(this.session)
		this.columns.append(this.middle, this.facts)
		place("foot").append(new ConnectionState(page, () => this.toQuestion()))
		this.help = listen(this.shortcuts())
		place("bar-buttons").append(...this.barButtons())
		place("search-button").addEventListener("click", () => this.find())
		page.addEventListener("open", () => this.route(true))
		page.list.addEventListener("change", () => this.showTitle())
		addEventListener("popstate", () => this.route())
		listenForFiles((files) => this.takeFiles(files))
		this.route()
		// Who presses Ctrl-K types on at once.
		requestIdleCallback(() => void this.search())
	}

	route(isAsked = false) {
		const {page, session, current} = this
		const {view, key, cursor} = page.takeAddress()
		if (view === "usage") {
			void this.usage().then((usage) => usage.load())
			return this.show("usage")
		}
		this.current = key
		if (key !== current || cursor !== this.cursor || (isAsked && cursor))
			void session.show(key, cursor).then(() => this.facts.showGraph(key).catch(() => {}))
		this.cursor = cursor
		this.tree.select(key)
		this.facts.show(key)
		this.showTitle()
		this.show(key ? "session" : "tree")
	}

	/** @param {string} view */
	show(view) {
		this.shown = view
		this.columns.dataset.view = view
		this.session.hidden = view === "usage"
	}

	showTitle() {
		const {length} = this.page.list.waiting
		const parts = [length && `(${length})`, this.current && `${this.page.nameOf(this.current)} ·`, "sessiond"]
		const title = parts.filter(Boolean).join(" ")
		if (document.title !== title) document.title = title
	}

	toTree(toFilter = false) {
		if (this.shown !== "usage") this.show("tree")
		if (toFilter) this.tree.filter.select()
		else this.tree.focusCurrent()
	}

	toQuestion() {
		const [oldest] = this.page.list.waiting
		if (!oldest) return
		this.page.open(oldest)
		this.session.questions.focus()
	}

	/** @param {File[]} files */
	takeFiles(files) {
		const {page, session, current} = this
		const isOpen = document.querySelector("spawn-form dialog[open]") !== null
		if (!isOpen && current !== "" && page.may("send")) void session.composer.addFiles(files)
		else if (page.may("spawn")) this.begin(files)
	}

	find(onlyThere = false) {
		void this.search().then((search) => search.open(this.current, onlyThere))
	}

	/** @param {File[]} [files] */
	begin(files) {
		void this.spawn().then((spawn) => spawn.open(files))
	}

	barButtons() {
		const keys = wordButton("?", () => this.help.showModal(), {"aria-label": "Keys", title: "Keys (?)"})
		const usage = wordButton("Usage", () => this.page.go("usage"))
		return this.page.may("spawn") ? [button("New task", () => this.begin()), usage, keys] : [usage, keys]
	}

	/** @returns {Shortcut[]} */
	shortcuts() {
		const {page, session} = this
		const {transcript} = session
		return [
			["Ctrl K", "search everything", () => this.find()],
			["f", "search in this session", () => this.find(true)],
			["/", "filter the sessions", () => this.toTree(true)],
			["j", "next prompt", () => transcript.jump(1)],
			["k", "previous prompt", () => transcript.jump(-1)],
			["g", "to the end", () => transcript.toEnd()],
			["r", "write a message", () => session.composer.focus()],
			["a", "answer what waits longest", () => this.toQuestion()],
			["n", "new task", () => page.may("spawn") && this.begin()],
			["u", "usage", () => page.go("usage")],
			["t", "to the tree", () => this.toTree()],
			["Escape", "to the tree", () => this.toTree()],
			["↑ ↓ ← →", "in the tree: move, fold, open"],
		]
	}
}

/** @template {HTMLElement} T @param {() => Promise<T>} make @param {HTMLElement} parent */
function once(make, parent) {
	/** @type {Promise<T> | undefined} */
	let made
	const put = async () => {
		const element = await make()
		parent.append(element)
		return element
	}
	return () => {
		// Asked for again when the daemon is back.
		made ??= put().catch(() => {
			made = undefined
			return new Promise(() => {})
		})
		return made
	}
}
