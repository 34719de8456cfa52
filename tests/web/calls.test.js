// What the client sends, and what it repeats, with a daemon that is made up.

import assert from "node:assert/strict"
import {test} from "node:test"
import {Client} from "../../sessiond/web/client.js"
import {Backoff} from "../../sessiond/web/streams.js"

/** A client whose daemon is away for so many requests, and the requests that it sent. @param {number} lost */
async function clientWithout(lost) {
	/** @type {any[]} */
	const sent = []
	const fetch = async (/** @type {any} */ _path, /** @type {any} */ init) => {
		sent.push(JSON.parse(init.body))
		if (sent.length <= lost) throw new TypeError("refused")
		return new Response(JSON.stringify({result: sent.length}))
	}
	const stored = JSON.stringify({token: "t", scopes: ["list"]})
	const client = new Client({
		fetch,
		storage: {getItem: () => stored, setItem: () => {}, removeItem: () => {}},
	})
	await client.open()
	return {client, sent}
}

test("what another program answers on the port is no stream", async () => {
	for (const type of ["text/html", "application/json", ""]) {
		/** @type {string[]} */
		const states = []
		let asked = 0
		const client = new Client({
			fetch: async () => {
				asked += 1
				return new Response("event: ready\ndata: {}\n\n", {headers: {"Content-Type": type}})
			},
			storage: {getItem: () => JSON.stringify({token: "t", scopes: []}), setItem: () => {}, removeItem: () => {}},
		})
		await client.open()
		client.addEventListener("state", () => states.push(client.state))
		const stop = client.followSessions({onChanged: () => assert.fail(), onFresh: () => assert.fail()})
		while (asked < 3) await new Promise(setImmediate)
		stop()
		assert.deepEqual(states, ["reconnecting"])
	}
})

test("delays are doubled up to two seconds, shortened by at most a half", () => {
	const backoff = new Backoff()
	for (let attempt = 0; attempt < 40; attempt += 1) {
		const longest = Math.min(50 * 2 ** attempt, 2000)
		const delay = backoff.next()
		assert.ok(delay >= longest / 2 && delay <= longest, `attempt ${attempt}: ${delay}`)
	}
})

test("messages are repeated with one key, and what has no key is not repeated", async () => {
	for (const method of ["chat.send", "sessions_spawn"]) {
		const {client, sent} = await clientWithout(1)
		assert.equal(await client.call(method, {message: "x"}), 2)
		assert.match(sent[0].params.idempotencyKey, /^page-[0-9a-f-]{36}$/)
		assert.deepEqual(sent[0], sent[1])
		await client.call(method, {idempotencyKey: "mine"})
		await client.call(method)
		assert.equal(sent[2].params.idempotencyKey, "mine")
		assert.notEqual(sent[3].params.idempotencyKey, sent[0].params.idempotencyKey)
	}
	for (const method of ["sessions.list", "chat.history"]) {
		const {client, sent} = await clientWithout(1)
		assert.equal(await client.call(method, {key: "k"}), 2)
		assert.deepEqual(sent[1].params, {key: "k"})
	}
	for (const method of ["sessions.kill", "sessions.reset", "sessions.steer", "tokens.mint"]) {
		const {client, sent} = await clientWithout(1)
		await assert.rejects(client.call(method), {type: "away"})
		assert.equal(sent.length, 1)
	}
})
