// What tool calls did: the line that tells it, and the lines that they changed.

import assert from "node:assert/strict"
import {test} from "node:test"
import {countChanges, diffLines, foldKept, patchLines} from "../../sessiond/web/line-diff.js"
import {changesOf, detailsOf, summarizeCall, toolName} from "../../sessiond/web/tool-summary.js"
import {randomText} from "./random.js"

/** The text of one side. @param {DiffLine[]} lines @param {string} sign */
const side = (lines, sign) => lines.filter((line) => line.sign === " " || line.sign === sign).map(({text}) => text)

test("a diff has both texts in it, and few lines change where few differ", () => {
	for (let seed = 1; seed <= 200; seed += 1) {
		const [before, after] = [randomText(seed, "ab\n\n"), randomText(seed + 1000, "ab\n\n")]
		const lines = diffLines(before, after)
		assert.deepEqual(side(lines, "-").join("\n"), before.replace(/\n$/, ""))
		assert.deepEqual(side(lines, "+").join("\n"), after.replace(/\n$/, ""))
	}
	assert.deepEqual(countChanges(diffLines("a\nb\nc\nd", "a\nx\nc\nd\ne")), {added: 2, removed: 1})
	assert.deepEqual(diffLines("", ""), [])
})

test("texts of any length are compared in bounded work", () => {
	const many = (/** @type {string} */ word) => Array.from({length: 5000}, (_, at) => `${word}${at}`).join("\n")
	const lines = diffLines(`same\n${many("a")}\nsame`, `same\n${many("b")}\nsame`)
	assert.deepEqual(countChanges(lines), {added: 5000, removed: 5000})
	assert.equal(lines.length, 10_002)
})

test("long stretches that stayed are folded", () => {
	const text = Array.from({length: 40}, (_, at) => `${at}`).join("\n")
	const lines = foldKept(diffLines(text, text.replace("20", "changed")))
	assert.equal(lines.map(({sign}) => sign).join(""), "@   -+   @")
})

test("the lines of a patch", () => {
	const patch = "diff --git a/x b/x\nindex 1..2\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new\n same"
	assert.deepEqual(
		patchLines(patch).map(({sign, text}) => sign + text),
		["@x", "@@@ -1 +1 @@", "-old", "+new", " same"],
	)
	const codex = "*** Begin Patch\n*** Update File: a.py\n@@\n-x\n+y\n*** End Patch"
	assert.deepEqual(
		patchLines(codex).map(({sign, text}) => sign + text),
		["@Update File: a.py", "@@@", "-x", "+y"],
	)
})

test("a call on one line", () => {
	assert.equal(summarizeCall({command: "just  test\n-x", description: "run"}), "just test -x")
	assert.equal(summarizeCall({command: ["bash", "-lc", "ls -l"]}), "ls -l")
	assert.equal(summarizeCall({cmd: ["ls", "-l"]}), "ls -l")
	assert.equal(summarizeCall('{"path": "/x"}'), "/x")
	assert.equal(summarizeCall({odd: 1}), '{ "odd": 1 }')
	assert.deepEqual(
		[undefined, null, 7, [], {}].map((one) => summarizeCall(one)),
		["", "", "", "", ""],
	)
	assert.equal(summarizeCall({command: "x".repeat(500)}).length, 160)
	assert.equal(toolName("mcp__github__list_issues"), "github.list_issues")
	assert.equal(detailsOf({command: "ls\n-l", timeout: 5}), "ls\n-l")
})

test("the changes that a call asks for, in the words of each program", () => {
	const edit = {file_path: "/a", old_string: "x", new_string: "y"}
	assert.deepEqual(changesOf(edit), [{path: "/a", before: "x", after: "y"}])
	assert.deepEqual(changesOf({path: "/a", edits: [{oldText: "x", newText: "y"}, 5]}), [
		{path: "/a", before: "x", after: "y"},
	])
	assert.deepEqual(changesOf({file_path: "/a", content: "new"}), [{path: "/a", before: "", after: "new"}])
	const patch = "*** Begin Patch\n*** End Patch"
	assert.deepEqual(changesOf({input: patch}), [{path: "", patch}])
	assert.deepEqual(changesOf(patch), [{path: "", patch}])
	// What would take long to compare and to build is shown as it stands.
	const long = {...edit, new_string: "x".repeat(600_000)}
	const many = {path: "/a", edits: Array.from({length: 101}, () => ({oldText: "x", newText: "y"}))}
	for (const none of [
		long,
		many,
		{command: "ls"},
		{path: "/a"},
		{content: "x"},
		null,
		"text",
		{file_path: 5, old_string: {}},
	]) {
		assert.deepEqual(changesOf(none), [])
	}
})
