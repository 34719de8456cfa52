// The order of the tree: what waits on top, then what runs, then the rest; and usage, told apart by what one likes.

import assert from "node:assert/strict"
import {test} from "node:test"
import {treeLines} from "../../sessiond/web/session-groups.js"
import {SessionRows} from "../../sessiond/web/session-list.js"
import {agentOf, stateOf} from "../../sessiond/web/session-state.js"
import {lastDays, usageLines} from "../../sessiond/web/usage-sums.js"

/** @param {Partial<Row>} row @returns {Row} */
function rowOf(row) {
	const path = "/store/agents/main/sessions/x.jsonl"
	const fixed = {
		sessionId: "x",
		source: "sessiond",
		kind: "other",
		channel: "unknown",
		createdAt: 0,
		transcriptPath: path,
		state: /** @type {const} */ ("idle"),
	}
	return {...fixed, key: "agent:main:main", updatedAt: 1, ...row}
}

/** Lines as short words: `Group 2`, `> a` for each depth. @param {Row[]} rows @param {Parameters<typeof treeLines>[1]} how */
function linesOf(rows, how = {by: "project"}) {
	const known = new Map(rows.map((row) => [row.key, row]))
	return treeLines(known, how).map((line) =>
		line.type === "group" ? `${line.name} ${line.count}` : `${">".repeat(line.depth + 1)} ${line.id}`,
	)
}

test("what waits stands on top, then what runs, then the rest by project, the newest first", () => {
	const rows = [
		rowOf({key: "a", cwd: "/w/one", updatedAt: 5}),
		rowOf({key: "b", cwd: "/w/two", updatedAt: 9}),
		rowOf({key: "c", cwd: "/w/one", updatedAt: 7, state: "running"}),
		rowOf({key: "d", updatedAt: 1, state: "waiting", waiting: {title: "May I?"}}),
		rowOf({key: "e", cwd: "/w/one", updatedAt: 6}),
	]
	const expected = ["Waits for you 1", "> d", "Running 1", "> c", "two 1", "> b", "one 2", "> e", "> a"]
	assert.deepEqual(linesOf(rows), expected)
	assert.deepEqual(linesOf(rows, {by: "agent"}).slice(4), ["main 3", "> b", "> e", "> a"])
})

test("children stand below their parents, and what becomes of them shows above", () => {
	const rows = [
		rowOf({key: "p", cwd: "/w", updatedAt: 1}),
		rowOf({key: "c", cwd: "/w", updatedAt: 2, spawnedBy: "p", state: "error"}),
		rowOf({key: "g", cwd: "/w", updatedAt: 3, spawnedBy: "c", state: "error"}),
		rowOf({key: "q", cwd: "/w", updatedAt: 2}),
		rowOf({key: "o", cwd: "/w", updatedAt: 0, spawnedBy: "not here"}),
	]
	assert.deepEqual(linesOf(rows), ["w 3", "> p", ">> c", ">>> g", "> q", "> o"])
	const lines = treeLines(new Map(rows.map((row) => [row.key, row])), {by: "project"})
	const failed = lines.map((line) => (line.type === "session" ? line.failedBelow : -1))
	assert.deepEqual(failed, [-1, 2, 1, 0, 0, 0])
	assert.deepEqual(linesOf(rows, {by: "project", folded: new Set(["p"])}), ["w 3", "> p", "> q", "> o"])
	// A child that runs takes its tree to the running ones.
	rows[2] = rowOf({key: "g", cwd: "/w", updatedAt: 3, spawnedBy: "c", state: "running"})
	assert.deepEqual(linesOf(rows).slice(0, 4), ["Running 1", "> p", ">> c", ">>> g"])
})

test("folders of one name are told apart by the folders above them", () => {
	const rows = ["/s/agents/main/workspace", "/s/agents/counter/workspace", "/w/one", "/x/one", "/y"].map((cwd, at) =>
		rowOf({key: `${at}`, cwd, updatedAt: 9 - at}),
	)
	const names = linesOf(rows).filter((line) => !line.startsWith(">"))
	assert.deepEqual(names, ["main/workspace 1", "counter/workspace 1", "w/one 1", "x/one 1", "y 1"])
})

test("sessions that are their own ancestors are shown, each once", () => {
	const rows = [rowOf({key: "a", spawnedBy: "b"}), rowOf({key: "b", spawnedBy: "a"}), rowOf({key: "c", spawnedBy: "c"})]
	const shown = linesOf(rows).filter((line) => line.startsWith(">"))
	assert.deepEqual(shown.map((line) => line.replace(/>+ /, "")).sort(), ["a", "b", "c"])
})

test("a filter keeps what fits with what is above it", () => {
	const rows = [
		rowOf({key: "p", cwd: "/w", title: "Release"}),
		rowOf({key: "c", cwd: "/w", title: "Fix the tail", spawnedBy: "p"}),
		rowOf({key: "q", cwd: "/w", title: "Other", model: "gpt-5"}),
	]
	const folded = new Set(["p", "folder /w"])
	assert.deepEqual(linesOf(rows, {by: "project", filter: "TAIL fix", folded}), ["w 1", "> p", ">> c"])
	assert.deepEqual(linesOf(rows, {by: "project", filter: "gpt"}), ["w 1", "> q"])
	assert.deepEqual(linesOf(rows, {by: "project", filter: "nothing such"}), [])
})

test("many children are folded until somebody opens them", () => {
	const children = Array.from({length: 7}, (_, at) => rowOf({key: `c${at}`, cwd: "/w", spawnedBy: "p"}))
	const rows = [rowOf({key: "p", cwd: "/w"}), ...children]
	assert.equal(linesOf(rows).length, 2)
	assert.equal(linesOf(rows, {by: "project", opened: new Set(["p"])}).length, 9)
	assert.equal(linesOf(rows.slice(0, 7)).length, 8)
})

test("the state of a session in one word", () => {
	const states = [
		{},
		{state: "done", status: "ok"},
		{state: "error", status: "timeout"},
		{state: "running", status: "running", queuedRuns: 2},
		{state: "running", status: "queued", queuedRuns: 1},
		{state: "waiting", status: "running"},
		{state: "__proto__"},
	]
	assert.deepEqual(
		states.map((one) => stateOf(rowOf(/** @type {any} */ (one)))),
		["idle", "done", "error", "running", "queued", "waiting", "idle"],
	)
})

test("rows are known by their canonical key, however the list writes it", () => {
	const rows = new SessionRows()
	rows.put(rowOf({key: "main", derivedTitle: "first words"}))
	assert.equal(agentOf(rowOf({key: "main"})), "main")
	rows.put(rowOf({key: "main", updatedAt: 9}), "agent:main:main")
	assert.deepEqual([...rows.byKey.keys()], ["agent:main:main"])
	assert.equal(rows.get("main")?.derivedTitle, "first words")
	rows.put(rowOf({key: "agent:main:sub", spawnedBy: "agent:main:main"}))
	assert.deepEqual(
		rows.childrenOf("agent:main:main").map(({key}) => key),
		["agent:main:sub"],
	)
	rows.remove("agent:main:main")
	assert.equal(rows.size, 1)
})

test("a row of another machine has its name for a source, and says while it is away", () => {
	const rows = new SessionRows()
	const there = {key: "mars/agent:a:b", source: "machine", machine: "mars"}
	rows.put(rowOf({...there, awaySince: 5}))
	assert.equal(rows.get("mars/agent:a:b")?.source, "mars (away)")
	rows.put(rowOf(there))
	assert.equal(rows.get("mars/agent:a:b")?.source, "mars")
	assert.equal(agentOf(rowOf(there)), "")
})

test("usage by what one likes, days the newest first", () => {
	const sum = (/** @type {number} */ totalTokens) => ({inputTokens: 1, outputTokens: 2, cacheRead: 3, totalTokens})
	const usage = {
		byDay: [
			{day: "2026-11-20", ...sum(5)},
			{day: "2026-11-22", ...sum(7)},
		],
		byModel: [
			{model: "a", ...sum(9)},
			{model: null, ...sum(1)},
		],
		byProject: [{cwd: "", ...sum(1)}],
		bySource: [{source: "claude", ...sum(1)}],
	}
	const shown = (/** @type {UsageBy} */ by) =>
		usageLines(usage, by).map((line) => `${line.name} ${line.sum.totalTokens}`)
	assert.deepEqual(shown("day"), ["2026-11-22 7", "2026-11-20 5"])
	assert.deepEqual(shown("model"), ["a 9", "not known 1"])
	assert.deepEqual([shown("project"), shown("program"), shown("agent")], [["not known 1"], ["claude 1"], []])
	const days = lastDays(usage.byDay, 3, Date.parse("2026-11-22T12:00:00Z"))
	assert.deepEqual(
		days.map(({tokens}) => tokens),
		[5, 0, 7],
	)
})
