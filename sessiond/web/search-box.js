import {fill, h} from "./element.js"
import {formatAge} from "./format.js"
import {isToolResult, speakerOf} from "./message-parts.js"
import {cut, safeLine} from "./plain-text.js"
import {problemNote} from "./problem-note.js"
import {nameOf, stateOf} from "./session-state.js"
import {stateMark} from "./state-mark.js"

const TYPING_MS = 150
const HINT =
	"One phrase as it was said, in upper or lower case; a part of a word will do. Titles and folders: words in any order. " +
	"`sessiond search --help` narrows by time, program and folder."
const MOST_NAMES = 8
const MOST_MATCHES = 50

export class SearchBox extends HTMLElement {
	/** @param {PageContext} page */
	constructor(page) {
		super()
		this.page = page
		/** @type {Found[]} */
		this.found = []
		this.at = 0
		this.within = ""
		this.input = h("input", {
			type: "search",
			role: "combobox",
			"aria-label": "Search everything that was said",
			"aria-expanded": "true",
			"aria-controls": "search-results",
			autocomplete: "off",
			spellcheck: "false",
			placeholder: "Search everything that was said",
			oninput: () => this.typed(),
			onkeydown: (event) => this.keyed(event),
		})
		this.here = h("input", {type: "checkbox", id: "search-here", onchange: () => this.typed()})
		this.hereLabel = h("label", {for: "search-here"}, this.here, " only in this session")
		this.results = h("ul", {
			id: "search-results",
			role: "listbox",
			"aria-label": "Found",
			onclick: (event) => this.clicked(event),
		})
		this.note = h("p", {class: "hint", role: "status"})
		this.problem = h("div")
		this.dialog = h(
			"dialog",
			{"aria-label": "Search", onclose: () => this.looking?.abort()},
			this.input,
			this.hereLabel,
			this.results,
			this.note,
			this.problem,
		)
		this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close())
		this.append(this.dialog)
	}

	/** @param {string} within @param {boolean} [onlyThere] */
	open(within, onlyThere = false) {
		const {dialog, input, hereLabel, here} = this
		this.within = within
		hereLabel.hidden = within === ""
		here.checked = onlyThere && within !== ""
		if (!dialog.open) dialog.showModal()
		input.select()
		this.typed()
	}

	typed() {
		clearTimeout(this.timer)
		this.looking?.abort()
		this.at = 0
		const text = this.input.value.trim()
		const names = this.here.checked ? [] : this.namesLike(text)
		this.show(names, text === "" ? HINT : "Looking …")
		if (text === "") return
		const looking = new AbortController()
		this.looking = looking
		this.timer = setTimeout(() => this.search(text, names, looking.signal), TYPING_MS)
	}

	/** @param {string} text @param {Found[]} names @param {AbortSignal} signal */
	async search(text, names, signal) {
		const {page, within, here} = this
		try {
			const where = here.checked ? {sessionKey: within} : {}
			const answer = await page.client.call(
				"sessions_search",
				{query: cut(text, 512), limit: MOST_MATCHES, ...where},
				{signal},
			)
			if (signal.aborted) return
			const matches = answer.matches.map((/** @type {Match} */ match) => this.matchFound(match, text))
			const more = answer.hasMore
				? `The newest ${MOST_MATCHES} places.`
				: matches.length + names.length === 0
					? `Nothing contains “${safeLine(text, 60)}” word for word.`
					: ""
			const partial = answer.partial ? ` Sessions still being read: ${answer.partial}.` : ""
			this.show([...names, ...matches], more + partial)
		} catch (problem) {
			if (signal.aborted) return
			this.show(names, "")
			fill(this.problem, problemNote(problem, {what: "The search ended early."}))
		}
	}

	/** @param {string} text */
	namesLike(text) {
		const {page} = this
		const words = text.toLowerCase().split(/\s+/).filter(Boolean)
		const rows = [...page.list.rows.byKey].sort((one, other) => other[1].updatedAt - one[1].updatedAt)
		const fits = rows.filter(([key, row]) => {
			const all = `${nameOf(row)}\n${row.cwd ?? ""}\n${key}`.toLowerCase()
			return words.every((word) => all.includes(word))
		})
		// What is found by its key shows that.
		const hasOne = (/** @type {string | undefined} */ text) => words.some((word) => text?.toLowerCase().includes(word))
		return fits.slice(0, MOST_NAMES).map(([key, row]) => ({
			key,
			parts: [
				stateMark(stateOf(row)),
				h("bdi.said", {}, ...marked(safeLine(nameOf(row)), words)),
				h("span.age", {}, formatAge(row.updatedAt, Date.now())),
				h("bdi.where", {}, ...marked(safeLine([row.cwd, key].find(hasOne) ?? row.cwd), words)),
			],
		}))
	}

	/** @param {Match} match @param {string} text */
	matchFound({sessionKey, cursor, timestamp, role, snippet}, text) {
		const isTask = role === "user" && this.page.list.rows.get(sessionKey)?.spawnedBy !== undefined
		const who = isToolResult({role}) ? "Tool" : isTask ? "Session" : speakerOf({role}).word
		return {
			key: sessionKey,
			cursor,
			parts: [
				h("span.where", {}, h("bdi", {}, this.page.nameOf(sessionKey)), ` · ${who}`),
				h("span.age", {}, formatAge(timestamp, Date.now())),
				h("bdi.said", {}, ...marked(safeLine(snippet, 300), [text])),
			],
		}
	}

	/** @param {Found[]} found @param {string} note */
	show(found, note) {
		this.found = found
		this.at = Math.min(this.at, Math.max(0, found.length - 1))
		const items = found.map(({parts, cursor}, at) =>
			h("li", {role: "option", id: `search-result-${at}`, class: cursor ? "match" : "name"}, parts),
		)
		fill(this.results, items)
		fill(this.problem)
		this.note.textContent = note
		this.mark()
	}

	mark() {
		const items = [...this.results.children]
		for (const [at, item] of items.entries()) item.setAttribute("aria-selected", String(at === this.at))
		const current = items[this.at]
		current?.scrollIntoView({block: "nearest"})
		if (current) this.input.setAttribute("aria-activedescendant", current.id)
		else this.input.removeAttribute("aria-activedescendant")
	}

	/** @param {KeyboardEvent} event */
	keyed(event) {
		const {found, at} = this
		if (event.key === "ArrowDown" || event.key === "ArrowUp") {
			this.at = Math.min(Math.max(at + (event.key === "ArrowDown" ? 1 : -1), 0), Math.max(0, found.length - 1))
			this.mark()
		} else if (event.key === "Escape") this.dialog.close()
		else if (event.key === "Enter") this.follow(found[at])
		else return
		event.preventDefault()
	}

	/** @param {MouseEvent} event */
	clicked(event) {
		const item = /** @type {Element} */ (event.target).closest("li")
		if (item) this.follow(this.found[[...this.results.children].indexOf(item)])
	}

	/** @param {Found | undefined} found */
	follow(found) {
		if (!found) return
		this.dialog.close()
		this.page.open(found.key, found.cursor)
	}
}

/** @param {string} text @param {string[]} phrases */
function marked(text, phrases) {
	const any = phrases.map((one) => one.replace(/[^\w\s]/g, "\\$&").replace(/\s+/g, "\\s+")).join("|")
	// Every other part is a match.
	return any ? text.split(RegExp(`(${any})`, "i")).map((part, at) => (at % 2 ? h("mark", {}, part) : part)) : [text]
}

customElements.define("search-box", SearchBox)
