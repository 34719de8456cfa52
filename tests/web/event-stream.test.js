import assert from "node:assert/strict"
import {test} from "node:test"
import {EventParser, readEvents} from "../../sessiond/web/streams.js"

const TEXT =
	'event: message\nid: 7-1-x\ndata: {"a": "é"}\n\n: \n\nevent: delta\ndata: one\ndata: two\n\nid: 9\n\ndata:bare\r\n\r\n'
const EVENTS = [
	{name: "message", data: '{"a": "é"}'},
	{name: "delta", data: "one\ntwo"},
	{name: "message", data: "bare"},
]

test("events are the same however their text is cut", () => {
	for (let size = 1; size <= TEXT.length; size += 1) {
		const parser = new EventParser()
		const events = []
		for (let at = 0; at < TEXT.length; at += size) events.push(...parser.push(TEXT.slice(at, at + size)))
		assert.deepEqual(events, EVENTS, `pieces of ${size}`)
	}
})

/** @param {Uint8Array[]} chunks @param {Error} [failure] */
function streamOf(chunks, failure) {
	let cancelled = false
	const stream = new ReadableStream({
		pull(controller) {
			const chunk = chunks.shift()
			if (chunk) controller.enqueue(chunk)
			else if (failure) controller.error(failure)
			else controller.close()
		},
		cancel() {
			cancelled = true
		},
	})
	return {stream, wasCancelled: () => cancelled}
}

test("a character that is cut in two bytes is read whole", async () => {
	const bytes = new TextEncoder().encode(TEXT)
	const {stream} = streamOf([...bytes].map((byte) => Uint8Array.of(byte)))
	const events = []
	for await (const event of readEvents(stream)) events.push(event)
	assert.deepEqual(events, EVENTS)
})

test("an event of eight megabytes in small chunks is read in a moment", () => {
	const parser = new EventParser()
	parser.push("data: ")
	for (let count = 0; count < 8192; count += 1) assert.deepEqual(parser.push("x".repeat(1024)), [])
	assert.equal(parser.push("\n\n")[0].data.length, 8192 * 1024)
})

test("a connection that is lost ends the events, and a reader that stops ends the stream", async () => {
	const lost = streamOf([new TextEncoder().encode("data: one\n\ndata: tw")], new TypeError("network error"))
	const events = []
	for await (const event of readEvents(lost.stream)) events.push(event.data)
	assert.deepEqual(events, ["one"])
	const stopped = streamOf(
		["data: one\n\n", "data: two\n\n", "data: three\n\n"].map((text) => new TextEncoder().encode(text)),
	)
	for await (const event of readEvents(stopped.stream)) {
		assert.equal(event.data, "one")
		break
	}
	assert.ok(stopped.wasCancelled())
})

test("every chunk says that the daemon is there", async () => {
	let alive = 0
	const chunks = [": \n\n", ": \n\n"].map((text) => new TextEncoder().encode(text))
	for await (const event of readEvents(streamOf(chunks).stream, () => (alive += 1))) assert.fail(event.data)
	assert.equal(alive, 2)
})
