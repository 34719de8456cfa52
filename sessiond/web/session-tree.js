import {fill, h, keepChildren, wordButton} from "./element.js"
import {formatCount} from "./format.js"
import {safeLine} from "./plain-text.js"
import {problemNote} from "./problem-note.js"
import {treeLines} from "./session-groups.js"
import {SessionRow, versionOfRow} from "./session-row.js"

const LOOK_FURTHER_MS = 200

export class SessionTree extends HTMLElement {
	/** @param {PageContext} page */
	constructor(page) {
		super()
		this.page = page
		/** @type {Set<string>} */
		this.folded = new Set()
		/** @type {Set<string>} */
		this.opened = new Set()
		/** @type {TreeLine[]} */
		this.lines = []
		this.selected = ""
		this.current = ""
		/** @type {Grouping} */
		this.grouping = page.marks.preference("grouping") === "agent" ? "agent" : "project"
		this.filter = h("input", {
			type: "search",
			placeholder: "Filter sessions",
			"aria-label": "Filter sessions",
			autocomplete: "off",
			spellcheck: "false",
			oninput: () => this.filtered(),
			onkeydown: (event) => this.filterKey(event),
		})
		this.grouper = h(
			"select",
			{"aria-label": "Group by", onchange: () => this.regroup()},
			h("option", {value: "project"}, "by project"),
			h("option", {value: "agent"}, "by agent"),
		)
		this.grouper.value = this.grouping
		this.tree = h("div", {
			role: "tree",
			"aria-label": "Sessions",
			class: "lines",
			onkeydown: (event) => this.treeKey(event),
			onclick: (event) => this.clicked(event),
		})
		this.note = h("div.note")
		/** @type {unknown} */
		this.problem = null
		this.trouble = h("div")
		this.append(
			h("h1.unseen", {}, "Sessions"),
			h("div.tree-head", {}, this.filter, this.grouper),
			this.trouble,
			h("div.scroller", {}, this.tree, this.note),
		)
		page.list.addEventListener("change", () => this.render())
		this.render()
	}

	render() {
		const {page, tree, filter} = this
		const {rows} = page.list
		const {grouping: by, folded, opened} = this
		this.lines = treeLines(rows.byKey, {by, filter: filter.value, folded, opened})
		const now = Date.now()
		const lookOf = (/** @type {SessionLine} */ line) => ({
			now,
			isUnread: line.id !== this.selected && page.marks.isUnread(line.id, line.row),
			isSelected: line.id === this.selected,
		})
		keepChildren(tree, this.lines, {
			key: (line) => line.id,
			version: (line) =>
				line.type === "group" ? `${line.name} ${line.count} ${line.isOpen}` : versionOfRow(line, lookOf(line)),
			build: (line) =>
				line.type === "group"
					? showGroup(h("div", {class: "group", role: "treeitem", "aria-level": 1}), line)
					: new SessionRow().show(line, lookOf(line)),
			update: (node, line) => (line.type === "group" ? showGroup(node, line) : node.show(line, lookOf(line))),
		})
		this.markCurrent()
		this.renderNote()
	}

	renderNote() {
		const {page, note, lines, filter} = this
		const {list} = page
		// An alert is read out each time it is made.
		if (this.problem !== list.problem) {
			this.problem = list.problem
			const again = () => list.load()
			fill(
				this.trouble,
				list.problem ? problemNote(list.problem, {what: "The sessions cannot be listed.", again}) : null,
			)
		}
		if (list.problem && list.rows.size === 0) return fill(note)
		if (list.state === "loading") return fill(note, h("p.hint", {}, "Reading …"))
		if (list.rows.size === 0) return fill(note, emptyHint(), h("p.hint.wide", {}, "No sessions yet."))
		const more = list.olderCursor !== null && wordButton("Older sessions", () => list.loadOlder())
		const nothing = lines.length === 0 && h("p.hint", {}, `No session is called “${filter.value}”.`)
		fill(note, nothing, more)
	}

	/** Tab reaches one alone. */
	markCurrent() {
		const nodes = this.nodes()
		const {lines} = this
		const at = lines.findIndex(({id}) => id === (this.current || this.selected))
		for (const [one, node] of nodes.entries()) node.tabIndex = one === Math.max(0, at) ? 0 : -1
	}

	/** @param {string} key */
	select(key) {
		this.selected = key
		this.current = key
		this.render()
	}

	filtered() {
		this.render()
		this.looking?.abort()
		clearTimeout(this.lookTimer)
		const text = this.filter.value.trim()
		if (text.length < 2 || this.page.list.olderCursor === null) return
		const looking = new AbortController()
		this.looking = looking
		this.lookTimer = setTimeout(() => this.page.list.find(text, looking.signal).catch(() => {}), LOOK_FURTHER_MS)
	}

	regroup() {
		this.grouping = this.grouper.value === "agent" ? "agent" : "project"
		this.page.marks.prefer("grouping", this.grouping)
		this.render()
	}

	/** @param {KeyboardEvent} event */
	filterKey(event) {
		if (event.key === "ArrowDown") {
			event.preventDefault()
			this.focusAt(0)
		} else if (event.key === "Enter") {
			const first = this.lines.find((line) => line.type === "session")
			if (first) this.page.open(first.id)
		} else if (event.key === "Escape" && this.filter.value) {
			event.stopPropagation()
			this.filter.value = ""
			this.filtered()
		}
	}

	/** @param {KeyboardEvent} event */
	treeKey(event) {
		if (event.ctrlKey || event.metaKey || event.altKey) return
		const {lines} = this
		const at = this.nodes().indexOf(/** @type {HTMLElement} */ (document.activeElement))
		const line = lines[at]
		if (line === undefined) return
		const moves = {ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: lines.length - 1}
		if (event.key in moves) this.focusAt(moves[/** @type {keyof typeof moves} */ (event.key)])
		else if (event.key === "ArrowRight") isFoldable(line) && !line.isOpen ? this.fold(line) : this.focusAt(at + 1)
		else if (event.key === "ArrowLeft")
			isFoldable(line) && line.isOpen ? this.fold(line) : this.focusAt(parentOf(lines, at))
		else if (event.key === "Enter" || event.key === " ")
			line.type === "group" ? this.fold(line) : this.page.open(line.id)
		else return
		event.preventDefault()
	}

	/** @param {MouseEvent} event */
	clicked(event) {
		const target = /** @type {Element} */ (event.target)
		const at = this.nodes().findIndex((node) => node.contains(target))
		const line = this.lines[at]
		if (line === undefined) return
		this.current = line.id
		if (line.type === "group" || (target.closest(".twisty") && line.below > 0)) this.fold(line)
		else this.page.open(line.id)
	}

	/** @param {TreeLine} line */
	fold(line) {
		const {folded, opened} = this
		;(line.isOpen ? folded : opened).add(line.id)
		;(line.isOpen ? opened : folded).delete(line.id)
		this.render()
	}

	/** @param {number} at */
	focusAt(at) {
		const nodes = this.nodes()
		const node = nodes[Math.min(Math.max(at, 0), nodes.length - 1)]
		if (!node) return
		this.current = this.lines[nodes.indexOf(node)]?.id ?? ""
		this.markCurrent()
		node.focus()
	}

	focusCurrent() {
		this.nodes()
			.find((node) => node.tabIndex === 0)
			?.focus()
	}

	nodes() {
		return /** @type {HTMLElement[]} */ ([...this.tree.children])
	}
}

/** @param {HTMLElement} node @param {GroupLine} line */
function showGroup(node, {id, name, count, detail, isOpen}) {
	node.setAttribute("aria-expanded", String(isOpen))
	node.classList.add(id === "waiting" || id === "running" ? id : "place")
	if (detail) node.setAttribute("title", safeLine(detail))
	fill(
		node,
		h("span", {class: "twisty", "aria-hidden": "true"}, "›"),
		h("bdi.title", {}, safeLine(name)),
		h("span.age", {}, formatCount(count)),
	)
	return node
}

/** @param {TreeLine} line */
const isFoldable = (line) => line.type === "group" || line.below > 0

/** @param {TreeLine[]} lines @param {number} at */
function parentOf(lines, at) {
	const depth = (/** @type {TreeLine | undefined} */ line) => (line?.type === "session" ? line.depth : -1)
	return lines.findLastIndex((line, one) => one < at && depth(line) < depth(lines[at]))
}

export function emptyHint() {
	return h(
		"div.empty",
		{},
		h("p.calm", {}, "No sessions yet."),
		h("p", {}, "Say something to an agent:"),
		h("pre", {}, 'sessiond send main "hello"'),
		h("p", {}, "Have the agent programs of this machine work with it:"),
		h("pre", {}, "sessiond setup"),
		h("p.hint", {}, "What they do shows here by itself."),
	)
}

customElements.define("session-tree", SessionTree)
