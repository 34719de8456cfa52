import {folderName} from "./format.js"
import {agentOf, nameOf, STATE_URGENCY, stateOf} from "./session-state.js"

const MOST_OPEN_CHILDREN = 6
const SECTIONS = [
	{id: "waiting", name: "Waits for you"},
	{id: "running", name: "Running"},
]

/** @param {Map<string, Row>} rows @param {TreeOptions} options */
export function treeLines(rows, {by, filter = "", folded = new Set(), opened = new Set()}) {
	const words = filter.toLowerCase().split(/\s+/).filter(Boolean)
	const roots = branches(rows, words)
	/** @type {Map<string, Group>} */
	const groups = new Map(SECTIONS.map((section) => [section.id, {...section, roots: []}]))
	for (const root of roots) {
		const group = root.urgency < 2 ? SECTIONS[root.urgency] : groupOf(root.row, by)
		if (!group) continue
		const known = groups.get(group.id)
		if (known) known.roots.push(root)
		else groups.set(group.id, {...group, roots: [root]})
	}
	tellApart([...groups.values()])
	/** @type {TreeLine[]} */
	const lines = []
	for (const group of groups.values()) {
		if (group.roots.length === 0) continue
		const isOpen = words.length > 0 || !folded.has(group.id)
		const {roots: members, ...named} = group
		lines.push({type: "group", ...named, count: members.length, isOpen})
		const isSection = SECTIONS.some(({id}) => id === group.id)
		const placed = (/** @type {Row} */ row) => (isSection ? groupOf(row, by).name : "")
		if (isOpen) for (const root of members) addBranch(lines, root, 0, {folded, opened, all: words.length > 0, placed})
	}
	return lines
}

/** @param {Row} row @param {Grouping} by */
export function groupOf(row, by) {
	if (by === "agent") {
		const agent = agentOf(row)
		return agent ? {id: `agent ${agent}`, name: agent} : {id: `source ${row.source}`, name: row.source}
	}
	return row.cwd
		? {id: `folder ${row.cwd}`, name: folderName(row.cwd), detail: row.cwd}
		: {id: "no folder", name: "No folder"}
}

/** Folders of one name get the folder above them, too. @param {{name: string, detail?: string}[]} groups */
function tellApart(groups) {
	for (let segments = 2; segments < 5; segments++) {
		const names = groups.map((group) => group.name)
		for (const group of groups)
			if (group.detail && names.indexOf(group.name) !== names.lastIndexOf(group.name))
				group.name = group.detail.split("/").filter(Boolean).slice(-segments).join("/")
	}
}

/** @param {Map<string, Row>} rows @param {string[]} words */
function branches(rows, words) {
	/** @type {Map<string, string[]>} */
	const below = new Map()
	/** @type {string[]} */
	const tops = []
	for (const [key, row] of rows) {
		const parent = row.spawnedBy
		if (parent === undefined || parent === key || !rows.has(parent)) tops.push(key)
		else if (!below.get(parent)?.push(key)) below.set(parent, [key])
	}
	const seen = new Set()
	/** @param {string} key @returns {Branch | null} */
	const build = (key) => {
		const row = rows.get(key)
		// A file may name itself as its own ancestor.
		if (row === undefined || seen.has(key)) return null
		seen.add(key)
		const children = (below.get(key) ?? []).map(build).filter((child) => child !== null)
		if (words.length > 0 && children.length === 0 && !fits(row, words)) return null
		return branch(key, row, children)
	}
	const built = tops.map(build).filter((root) => root !== null)
	for (const key of rows.keys()) {
		const root = seen.has(key) ? null : build(key)
		if (root) built.push(root)
	}
	return built.sort(newestFirst)
}

/** @param {string} key @param {Row} row @param {Branch[]} children */
function branch(key, row, children) {
	children.sort(newestFirst)
	const state = stateOf(row)
	let [newest, urgency, failed, below] = [row.updatedAt, STATE_URGENCY[state], 0, 0]
	for (const child of children) {
		newest = Math.max(newest, child.newest)
		urgency = Math.min(urgency, child.urgency)
		failed += child.failed + (stateOf(child.row) === "error" ? 1 : 0)
		below += child.below + 1
	}
	return {key, row, children, newest, urgency, failed, below}
}

/** @param {TreeLine[]} lines @param {Branch} one @param {number} depth @param {Folding} how */
function addBranch(lines, one, depth, how) {
	const {key, row, children} = one
	const few = children.length <= MOST_OPEN_CHILDREN || one.urgency < 2
	const isOpen = children.length > 0 && (how.all || (few ? !how.folded.has(key) : how.opened.has(key)))
	const place = depth === 0 ? how.placed(row) : ""
	lines.push({type: "session", id: key, row, depth, below: one.below, isOpen, failedBelow: one.failed, place})
	if (isOpen) for (const child of children) addBranch(lines, child, depth + 1, how)
}

/** @param {Branch} one @param {Branch} other */
const newestFirst = (one, other) => other.newest - one.newest || (one.key < other.key ? -1 : 1)

/** @param {Row} row @param {string[]} words */
function fits(row, words) {
	const text = [nameOf(row), row.title, row.key, row.cwd, row.model, row.source, row.nativeId, stateOf(row)]
		.join("\n")
		.toLowerCase()
	return words.every((word) => text.includes(word))
}
