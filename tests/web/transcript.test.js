// A transcript of any length: the stretch in memory, what it shows, and what messages of any shape come to.

import assert from "node:assert/strict"
import {test} from "node:test"
import {Exchanges} from "../../sessiond/web/exchanges.js"
import {jsonOf, partsOf, resultOf, speakerOf, textOf, timeOf} from "../../sessiond/web/message-parts.js"
import {TranscriptFeed} from "../../sessiond/web/transcript-feed.js"
import {messagesOf} from "../../sessiond/web/transcript-markdown.js"
import {piecesOf} from "../../sessiond/web/transcript-pieces.js"
import {TranscriptWindow} from "../../sessiond/web/transcript-window.js"
import {randomNumbers} from "./random.js"

const MORNING = Date.parse("2026-11-22T08:00:00Z")

/** @param {number} seq @param {Message} [message] @returns {PlacedMessage} */
const placed = (seq, message = {role: "user", content: `message ${seq}`, timestamp: MORNING + seq * 1000}) => ({
	messageId: `id ${seq}`,
	seq,
	cursor: `behind ${seq}`,
	message,
})

/** The page of the messages before one. @param {number} end @param {number} size @returns {HistoryPage} */
function pageBefore(end, size) {
	const first = Math.max(1, end - size)
	const all = Array.from({length: end - first}, (_, at) => placed(first + at))
	return {
		messages: all.map(({message}) => message),
		positions: all.map(({seq, cursor}) => ({id: `id ${seq}`, seq, cursor})),
		hasMore: first > 1,
		nextCursor: first > 1 ? `behind ${first - 1}` : null,
		cursor: `behind ${end - 1}`,
		skipped: 0,
	}
}

/** @param {string | null} cursor */
const numberOf = (cursor) => Number(/\d+/.exec(cursor ?? "")?.[0] ?? 0)

test("whatever one does, the window holds neighbours in order, at most so many, and knows what is before and behind", () => {
	for (let seed = 1; seed <= 60; seed += 1) {
		const random = randomNumbers(seed)
		let length = 50 + Math.floor(random() * 300)
		const shown = new TranscriptWindow(40)
		shown.begin(pageBefore(length + 1, 20), true)
		for (let step = 0; step < 80; step += 1) {
			const dice = random()
			const last = shown.lastSeq
			if (dice < 0.35) {
				if (shown.olderCursor) shown.prepend(pageBefore(numberOf(shown.olderCursor) + 1, 10))
			} else if (dice < 0.7) {
				const end = Math.min(length, last + 10)
				if (!shown.isAtEnd)
					shown.append(
						Array.from({length: end - last}, (_, at) => placed(last + 1 + at)),
						end === length,
					)
			} else {
				length += 1
				const what = shown.put(placed(length))
				assert.equal(what, shown.isAtEnd ? "added" : "beyond")
				// Who is at the end loses the oldest, who reads above the newest.
				if (random() < 0.7) shown.trimStart()
				else shown.trimEnd()
				assert.ok(shown.entries.length <= 40)
			}
			const seqs = shown.entries.map(({seq}) => seq)
			assert.deepEqual(
				seqs,
				Array.from({length: seqs.length}, (_, at) => (seqs[0] ?? 0) + at),
				`seed ${seed}`,
			)
			assert.equal(numberOf(shown.olderCursor), (seqs[0] ?? 1) - 1)
			assert.equal(shown.isAtEnd, seqs.at(-1) === length)
			assert.equal(shown.newestSeq, length)
		}
		shown.trimStart()
		assert.ok(shown.entries.length <= 40)
	}
})

test("a message that has grown takes the place of what it was", () => {
	const shown = new TranscriptWindow()
	shown.begin(pageBefore(4, 10), true)
	assert.equal(shown.put({...placed(2, {role: "assistant", content: "more"}), cursor: "behind 3b"}), "replaced")
	assert.deepEqual(
		shown.entries.map(({message}) => message.content),
		["message 1", "more", "message 3"],
	)
	assert.equal(shown.newestSeq, 3)
})

test("messages of one id are all there", () => {
	const shown = new TranscriptWindow()
	const page = pageBefore(4, 10)
	shown.begin({...page, positions: page.positions.map((one) => ({...one, id: "same"}))}, true)
	assert.equal(shown.put({...placed(4), messageId: "same"}), "added")
	assert.equal(new Set(shown.entries.map(({id}) => id)).size, 4)
})

test("who reads above keeps a bounded window, however much comes, and is told how much", async () => {
	/** @type {(event: any) => void} */
	let arrive = () => {}
	const client = /** @type {any} */ ({
		call: async () => pageBefore(13, 12),
		follow: (/** @type {any} */ follower) => {
			arrive = (event) => follower.onEvent("message", event)
			return () => {}
		},
	})
	const feed = new TranscriptFeed(client, "k")
	await feed.open()
	feed.isFollowed = false
	for (let seq = 13; seq <= 2000; seq += 1)
		arrive({...placed(seq), sessionId: "s", cursor: `${seq}-${seq}-0123456789ab`})
	assert.deepEqual(
		[feed.shown.entries.length, feed.shown.entries[0]?.seq, feed.shown.isAtEnd, feed.shown.newestSeq],
		[400, 1, false, 2000],
	)
	feed.stop()
})

test("one that is opened twice at once is followed once", async () => {
	let streams = 0
	const follow = () => {
		streams += 1
		return () => {
			streams -= 1
		}
	}
	const feed = new TranscriptFeed(/** @type {any} */ ({call: async () => pageBefore(3, 2), follow}), "k")
	await Promise.all([feed.open(), feed.open()])
	assert.equal(streams, 1)
	feed.stop()
	assert.equal(streams, 0)
})

test("a flood of live text keeps its end", async () => {
	/** @type {(name: string, data: any) => void} */
	let arrive = () => {}
	const client = /** @type {any} */ ({
		call: async () => pageBefore(3, 2),
		follow: (/** @type {any} */ {onEvent}) => {
			arrive = onEvent
			return () => {}
		},
	})
	const feed = new TranscriptFeed(client, "k")
	await feed.open()
	for (let at = 0; at < 5000; at += 1) arrive("delta", {text: `piece ${at} ${"x".repeat(50)}`})
	assert.ok(feed.liveText.length <= 64 * 1024 && feed.liveText.includes("piece 4999"))
	feed.stop()
})

/** @param {Message[]} messages */
function windowOf(messages) {
	const shown = new TranscriptWindow()
	const page = pageBefore(messages.length + 1, messages.length)
	shown.begin({...page, messages}, true)
	return shown
}

const HOUR = 3_600_000
const call = (/** @type {string} */ id) => ({type: "toolCall", id, name: "Bash", arguments: {command: "ls"}})

test("results stand with their calls; days, gaps and runs that failed stand between messages", () => {
	const shown = windowOf([
		{role: "user", content: "go", timestamp: MORNING},
		{role: "assistant", content: [call("a"), call("b")], timestamp: MORNING + 1000},
		{role: "toolResult", toolCallId: "b", content: "B", timestamp: MORNING + 2000},
		{role: "toolResult", toolCallId: "lost", content: "?", timestamp: MORNING + 3000},
		{role: "assistant", content: "done", timestamp: MORNING + 2 * HOUR},
		{role: "user", content: "again", timestamp: MORNING + 30 * HOUR},
	])
	shown.runs.set("r", {runId: "r", status: "error", seq: 5, replied: true, error: "no model"})
	shown.runs.set("fine", {runId: "fine", status: "ok", seq: 5, replied: true})
	shown.markers.set(5, {kind: "compaction", seq: 5, cursor: ""})
	const pieces = piecesOf(shown)
	assert.deepEqual(
		pieces.map((piece) => piece.type),
		["day", "message", "message", "message", "marker", "gap", "message", "run", "day", "message"],
	)
	const messages = pieces.filter((piece) => piece.type === "message")
	assert.deepEqual([...(messages[1]?.results.keys() ?? [])], ["b"])
	assert.deepEqual(
		messages.map(({isFirst}) => isFirst),
		[true, true, false, true, true],
	)
	assert.equal(new Set(pieces.map(({key}) => key)).size, pieces.length)
})

test("what has not changed keeps its version, what has does not", () => {
	const messages = [
		{role: "user", content: "go"},
		{role: "assistant", content: [call("a")]},
	]
	const shown = windowOf(messages)
	const before = piecesOf(shown).map(({version}) => version)
	assert.deepEqual(
		piecesOf(shown).map(({version}) => version),
		before,
	)
	shown.put(placed(3, {role: "toolResult", toolCallId: "a", content: "ok"}))
	const after = piecesOf(shown).map(({version}) => version)
	assert.equal(after[0], before[0])
	assert.notEqual(after[1], before[1])
	assert.equal(piecesOf(shown, {isLive: true}).at(-1)?.version.endsWith("live"), true)
})

test("sub-agents stand where they began", () => {
	const shown = windowOf([1, 2, 3].map((at) => ({role: "user", content: `${at}`, timestamp: MORNING + at * 1000})))
	const child = (/** @type {number} */ createdAt) => ({
		key: `c${createdAt}`,
		row: /** @type {any} */ ({key: "c", title: "t", createdAt}),
	})
	const pieces = piecesOf(shown, {children: [child(MORNING + 2500), child(MORNING + 9000)]})
	assert.deepEqual(
		pieces.map(({type}) => type),
		["day", "message", "message", "child", "message", "child"],
	)
})

test("questions stand where they were asked, and behind the call that they are about", () => {
	const shown = windowOf([
		{role: "user", content: "go", timestamp: MORNING},
		{role: "assistant", content: [call("a")], timestamp: MORNING + 2000},
		{role: "user", content: "and?", timestamp: MORNING + 4000},
	])
	const asked = (/** @type {number} */ ms, /** @type {Partial<Question>} */ more = {}) =>
		/** @type {Question} */ ({id: `q${ms}`, askedAt: MORNING + ms, status: "open", options: [], ...more})
	// A call is written when its message is whole, which may be after it was asked about.
	const open = [asked(9000), asked(1000, {toolCallId: "a"}), asked(500), asked(3000, {toolCallId: "gone"})]
	const order = (/** @type {Question[]} */ questions) =>
		piecesOf(shown, {questions}).map(({key, type}) => (type === "message" ? "message" : key.split(" ").at(-1)))
	const found = order(open).slice(1)
	assert.deepEqual(found, ["message", "q500", "message", "q1000", "q3000", "message", "q9000"])
	const versions = (/** @type {Question[]} */ questions) =>
		piecesOf(shown, {questions})
			.filter(({type}) => type === "question")
			.map(({version}) => version)
	assert.notDeepEqual(versions([asked(1, {status: "answered"})]), versions([asked(1)]))
	// Of a stretch only those of its time.
	shown.olderCursor = "older"
	shown.isAtEnd = false
	assert.deepEqual(order([asked(-1), asked(1), asked(9000)]).slice(1), ["message", "q1", "message", "message"])
})

test("a message has one time, whether it comes in a page or in an event", () => {
	const message = {role: "user", content: "said long ago", timestamp: MORNING - 999 * HOUR}
	const timestamp = new Date(MORNING).toISOString()
	const [paged, live] = [new TranscriptWindow(), new TranscriptWindow()]
	const positions = [{id: "id 1", seq: 1, cursor: "behind 1", timestamp}]
	paged.begin({...pageBefore(2, 1), messages: [message], positions}, true)
	live.put({...placed(1, message), timestamp})
	assert.deepEqual([paged.entries[0]?.at, live.entries[0]?.at], [MORNING, MORNING])
})

/** @type {any[]} */
const ODD = [
	undefined,
	null,
	0,
	"",
	"text",
	true,
	[],
	{},
	[[]],
	[null],
	[{type: "text"}],
	[{type: ["x"]}],
	{type: "text"},
	// What cannot become a text.
	{toString: 1, valueOf: 1, type: {toString: 1}},
]

test("messages of any shape have parts, a speaker and a text", () => {
	for (const content of ODD) {
		for (const odd of ODD) {
			const block = {type: "toolCall", id: odd, name: odd, arguments: odd}
			const message = {
				role: odd,
				content: Array.isArray(content) ? [...content, block, odd] : content,
				provenance: odd,
				timestamp: odd,
			}
			assert.ok(Array.isArray(partsOf(message)))
			assert.equal(typeof textOf(message), "string")
			assert.equal(typeof speakerOf(message).word, "string")
			assert.equal(typeof resultOf({...message, toolCallId: odd}).text, "string")
			const at = timeOf(message, typeof odd === "string" ? odd : undefined)
			assert.ok(at === null || Number.isFinite(at))
			new Date(at ?? 0).toISOString()
		}
	}
	assert.equal(timeOf({timestamp: 1e300}), null)
	assert.equal(jsonOf(10n), "")
})

test("who speaks", () => {
	const from = {kind: "inter_session", sourceSessionKey: "agent:a:main"}
	assert.deepEqual(speakerOf({role: "user", content: "x", provenance: from}), {
		who: "session",
		word: "Session",
		from: "agent:a:main",
	})
	assert.deepEqual(speakerOf({role: "user", content: "[from agent:a:main] x"}), {who: "user", word: "You"})
	assert.equal(speakerOf({role: "\u202edaeh"}).word, "‹U+202E›daeh")
})

test("who writes to whom is counted from provenance alone", () => {
	const found = new Exchanges()
	const from = (/** @type {string} */ key) => ({
		role: "user",
		content: "x",
		provenance: {kind: "inter_session", sourceSessionKey: key},
	})
	found.addMessages("b", [from("a"), from("a"), from("b"), {role: "user", content: "from a"}])
	found.addMessages("a", [from("b")])
	assert.deepEqual(
		found.all.map(({from: one, to, messages}) => [one, to, messages]),
		[
			["a", "b", 2],
			["b", "a", 1],
		],
	)
	assert.deepEqual(found.keys.sort(), ["a", "b"])
})

test("a page as Markdown", () => {
	const page = {
		...pageBefore(4, 3),
		messages: [
			{role: "user", content: "go"},
			{
				role: "assistant",
				content: [
					{type: "text", text: "ok"},
					call("a"),
					{type: "toolCall", id: "b", name: "X", arguments: {command: "a`b"}},
				],
			},
			{role: "toolResult", content: "no"},
		],
	}
	assert.deepEqual(messagesOf(page), ["**You**\n\ngo", "**Agent**\n\nok\n\n> Bash `ls`\n\n> X `a'b`"])
})
