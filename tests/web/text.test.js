// What agents wrote, as the page shows it: safe, bounded, and nothing lost.

import assert from "node:assert/strict"
import {test} from "node:test"
import {formatAge, formatBytes, formatCost, formatDuration, formatPast, modelName} from "../../sessiond/web/format.js"
import {blocksOf, spansOf} from "../../sessiond/web/markup.js"
import {cut, safeAddress, safeLine, safeText} from "../../sessiond/web/plain-text.js"
import {quoted, resumeCommand} from "../../sessiond/web/resume-command.js"
import {randomText} from "./random.js"

test("text that turns directions or hides is visible, and colours of terminals are gone", () => {
	assert.equal(safeText("gpj\u202eexe"), "gpj‹U+202E›exe")
	assert.equal(safeText("a\u2066b\u2069c"), "a‹U+2066›b‹U+2069›c")
	assert.equal(safeText("\u001b[31mred\u001b[0m \u001b]0;title\u0007end"), "red end")
	assert.equal(safeText("nul\u0000 bell\u0007"), "nul‹U+0000› bell‹U+0007›")
	assert.equal(safeText("tab\tline\r\nnext\rlast"), "tab\tline\nnext\nlast")
	assert.equal(safeText("שלום 👩‍👩‍👧 é"), "שלום 👩‍👩‍👧 é")
	assert.equal(safeText("\n[A list](x)"), "\n[A list](x)")
	assert.deepEqual([undefined, null, 7, {a: 1}].map(safeText), ["", "", "7", "[object Object]"])
})

test("a line is one line, as long as it may be, and no emoji is torn", () => {
	assert.equal(safeLine("  a\n b\t c "), "a b c")
	assert.equal(safeLine("x".repeat(300)).length, 200)
	assert.equal(safeLine("x".repeat(200)).length, 200)
	assert.equal(cut("ab😀", 3), "ab")
	assert.equal(cut("ab😀", 4), "ab😀")
	assert.doesNotThrow(() => encodeURIComponent(safeLine("😀".repeat(300))))
})

test("only the web may be linked to", () => {
	for (const good of ["https://example.org/a?b#c", "http://127.0.0.1:7433/"]) assert.ok(safeAddress(good))
	const bad = ["javascript:alert(1)", "JaVaScRiPt:1", "data:text/html,x", "file:///etc/passwd", "vbscript:x", "//x.y"]
	for (const one of [...bad, "https://user:pass@x.y/", "mailto:a@b.c", "blob:http://x/1", "", "x", "http://"]) {
		assert.equal(safeAddress(one), null, one)
	}
})

test("the blocks of a text", () => {
	const text =
		"# Title\nsome **words**\n\n- one\n- two\n  more\n\n```py\nx = 1\n\n# no title\n```\n> said\n\n|a|b|\n|-|-|\n|1|2|\n\n---\nend"
	assert.deepEqual(blocksOf(text), [
		{type: "heading", level: 1, text: "Title"},
		{type: "paragraph", text: "some **words**"},
		{
			type: "list",
			isNumbered: false,
			start: 1,
			items: [
				{depth: 0, text: "one"},
				{depth: 0, text: "two\nmore"},
			],
		},
		{type: "code", language: "py", text: "x = 1\n\n# no title"},
		{type: "quote", text: "said"},
		{
			type: "table",
			rows: [
				["a", "b"],
				["1", "2"],
			],
		},
		{type: "rule"},
		{type: "paragraph", text: "end"},
	])
	assert.deepEqual(blocksOf("```\nopen"), [{type: "code", language: "", text: "open"}])
	assert.deepEqual(blocksOf("in\n2024. it was"), [{type: "paragraph", text: "in\n2024. it was"}])
})

test("the spans of a line", () => {
	assert.deepEqual(spansOf("see `a*b*` and **bold**, [here](https://x.y/z) or https://x.y/q."), [
		{type: "text", text: "see "},
		{type: "code", text: "a*b*"},
		{type: "text", text: " and "},
		{type: "strong", text: "bold"},
		{type: "text", text: ", "},
		{type: "link", text: "here", address: "https://x.y/z"},
		{type: "text", text: " or "},
		{type: "link", text: "https://x.y/q", address: "https://x.y/q"},
		{type: "text", text: "."},
	])
	assert.deepEqual(spansOf("a_b_c 2*3*4"), [{type: "text", text: "a_b_c 2*3*4"}])
})

test("nothing of a text is lost, whatever it is", () => {
	const letters = (/** @type {string} */ text) => text.replaceAll(/[^ab]/g, "")
	/** @param {Block} block @returns {string[]} */
	const textsIn = (block) => {
		if (block.type === "list") return block.items.map(({text}) => text)
		if (block.type === "table") return block.rows.flat()
		return "text" in block ? [block.text] : []
	}
	for (let seed = 1; seed <= 300; seed += 1) {
		const text = randomText(seed, "ab *[](){}#>-|\n\t1.:/\u202e\u001b😀")
		const texts = blocksOf(text).flatMap(textsIn)
		assert.equal(letters(texts.join("")), letters(text), JSON.stringify(text))
		const spans = texts.flatMap(spansOf).map((span) => span.text + (span.type === "link" ? span.address : ""))
		assert.equal(letters(spans.join("")), letters(text), JSON.stringify(text))
	}
})

test("a command can be pasted into a shell", () => {
	assert.equal(quoted("it's $HOME"), `'it'\\''s $HOME'`)
	const row = /** @type {any} */ ({source: "claude", nativeId: "a-b", cwd: "/home/me/my work", key: "claude:a-b"})
	assert.equal(resumeCommand(row), "cd '/home/me/my work' && claude --resume a-b")
	assert.equal(resumeCommand({...row, source: "unknown"}), null)
	// What ends a paste in a terminal.
	assert.equal(resumeCommand({...row, cwd: "/home/\u001b[201~\nrm -rf x\n"}), null)
	assert.equal(resumeCommand({...row, nativeId: "a\nb"}), null)
	assert.equal(
		resumeCommand({...row, source: "sessiond", nativeId: undefined, key: "agent:main:x"}),
		`sessiond send agent:main:x "..."`,
	)
	// On the page such a row has the machine's name in place of the program's, which it may share.
	const there = {...row, machine: "claude", nativeId: "agent:ops:main", key: "claude/agent:ops:main"}
	assert.equal(resumeCommand(there), `sessiond send claude/agent:ops:main "..."`)
	assert.equal(resumeCommand({...there, key: "claude/agent:ops:\u001b[201~"}), null)
})

test("numbers and times", () => {
	assert.deepEqual([0, 423, 4200, 42_000, 60_000, 185_000, 7_260_000].map(formatDuration), [
		...["0 ms", "420 ms", "4.2 s", "42 s", "1 min", "3 min 5 s", "2 h 1 min"],
	])
	const now = Date.parse("2026-11-22T12:00:00Z")
	assert.deepEqual(
		[1, 60, 7200, 200_000].map((s) => formatAge(now - s * 1000, now)),
		["now", "1 min", "2 h", "2 d"],
	)
	assert.equal(formatPast(now - 60_000, now), "1 min ago")
	assert.equal(formatPast(now, now), "now")
	assert.deepEqual([999, 1500, 64_000, 7_500_000].map(formatBytes), ["999 bytes", "1.5 kB", "64 kB", "7.5 MB"])
	assert.match(formatCost(0.001), /^under /)
	assert.equal(modelName("anthropic/claude-opus-4-5-20251101"), "claude-opus-4-5")
})
