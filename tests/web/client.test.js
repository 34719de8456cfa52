/** The client with the real daemon; `tests/web/test_client.py` starts it and says where it is. */
import assert from "node:assert/strict"
import {before, test} from "node:test"
import {CallError, Client} from "../../sessiond/web/client.js"
import {followSession, readForward} from "../../sessiond/web/followed-session.js"

const base = process.env.SESSIOND_PAGE ?? ""
const code = process.env.SESSIOND_CODE
// Codes last for seconds only, which a slow machine may take.
const tokens = JSON.parse(process.env.SESSIOND_TOKENS ?? "[]")
const KEY = "agent:main:test:page"

/** @returns {Pick<Storage, "getItem" | "setItem" | "removeItem">} */
function memory() {
	/** @type {Map<string, string>} */
	const kept = new Map()
	return {
		getItem: (name) => kept.get(name) ?? null,
		setItem: (name, value) => void kept.set(name, value),
		removeItem: (name) => void kept.delete(name),
	}
}

/** @param {Partial<ConstructorParameters<typeof Client>[0]>} [options] */
async function opened(options) {
	const storage = options?.storage ?? memory()
	storage.setItem("sessiond.token", JSON.stringify({token: tokens.pop(), scopes: []}))
	const client = new Client({base, ...options, storage})
	await client.open()
	return client
}

/** @returns {{promise: Promise<any>, resolve: (value?: any) => void}} */
function deferred() {
	let resolve = (/** @type {any} */ _value) => {}
	const promise = new Promise((settle) => (resolve = settle))
	return {promise, resolve}
}

/** @param {Promise<any>} promise @param {string} type */
async function rejectsWith(promise, type) {
	await assert.rejects(promise, (error) => error instanceof CallError && error.type === type)
}

test("a code is traded, and the stored token opens the page again", async () => {
	const storage = memory()
	const first = new Client({base, storage})
	await first.open(code)
	assert.deepEqual([...first.caller.scopes].sort(), ["list", "read", "send"])
	assert.ok((first.caller.expiresAt ?? 0) > Date.now())
	assert.deepEqual([first.may("send"), first.may("spawn"), first.may("admin")], [true, false, false])
	const second = new Client({base, storage})
	await second.open()
	assert.deepEqual(second.caller, first.caller)
	await rejectsWith(new Client({base, storage: memory()}).open(code), "unauthenticated")
})

test("without a token there is nothing to open", async () => {
	const storage = memory()
	// As an older page kept it.
	storage.setItem("sessiond.token", JSON.stringify({token: tokens[0]}))
	await rejectsWith(new Client({base, storage}).open(), "unauthenticated")
	const client = new Client({base, storage: memory()})
	await rejectsWith(client.open(), "unauthenticated")
	assert.equal(client.state, "refused")
})

test("an error of a method has its type, its reason and its sentence", async () => {
	const client = await opened()
	await assert.rejects(client.call("chat.history", {sessionKey: "agent:main:nowhere"}), (error) => {
		assert.ok(error instanceof CallError)
		assert.deepEqual([error.code, error.type, error.data.code], [-32002, "not_found", "session_not_found"])
		return /no session/.test(error.message)
	})
	await rejectsWith(client.call("sessions.kill", {key: KEY}), "forbidden")
	assert.equal(client.state, "connecting")
})

test("an aborted call rejects with the reason of its signal", async () => {
	const client = await opened()
	const reason = new Error("no longer wanted")
	await assert.rejects(client.call("ping", {}, {signal: AbortSignal.abort(reason)}), reason)
})

test("changes of sessions come after the list was made fresh", async () => {
	const client = await opened()
	/** @type {string[]} */
	const seen = []
	const ended = deferred()
	const stop = client.followSessions({
		onFresh: async () => {
			seen.push(`fresh ${client.state}`)
			await client.call("chat.send", {sessionKey: KEY, message: "hello"})
			seen.push("listed")
		},
		onChanged: ({sessionKey, phase, row}) => {
			if (sessionKey !== KEY) return
			seen.push(phase)
			assert.ok(row?.sessionId)
			if (phase === "end") ended.resolve()
		},
	})
	await ended.promise
	stop()
	assert.deepEqual(seen.slice(0, 2), ["fresh live", "listed"])
	assert.ok(seen.includes("start"), seen.join())
})

test("a session is followed from the cursor of a page on, and over a pause", async () => {
	const client = await opened()
	const page = await client.call("chat.history", {sessionKey: KEY, limit: 1})
	/** @type {string[]} */
	const texts = []
	let next = deferred()
	const stop = followSession(client, KEY, page.cursor, {
		onMessage: ({message, grown}) => {
			texts.push(`${message.role}${grown ? " grown" : ""}`)
			if (texts.length % 2 === 0) next.resolve()
		},
	})
	await client.call("chat.send", {sessionKey: KEY, message: "one"})
	await next.promise
	client.pause()
	next = deferred()
	await client.call("agent.wait", {
		runId: (await client.call("chat.send", {sessionKey: KEY, message: "two"})).runId,
	})
	assert.equal(texts.length, 2)
	client.resume()
	await next.promise
	stop()
	assert.deepEqual(texts, ["user", "assistant", "user", "assistant"])
})

test("messages are read forward from any of them", async () => {
	const client = await opened()
	const {positions} = await client.call("chat.history", {sessionKey: KEY})
	for (const limit of [1, 2, 100]) {
		const found = await readForward(client, KEY, positions[0].cursor, limit)
		const wanted = positions.slice(1, 1 + limit)
		assert.deepEqual(
			found.map(({seq, cursor}) => [seq, cursor]),
			wanted.map((/** @type {any} */ one) => [one.seq, one.cursor]),
		)
	}
	assert.deepEqual(await readForward(client, KEY, positions.at(-1).cursor, 10), [])
})

test("a session that is not there ends its stream with an error, and the page goes on", async () => {
	const client = await opened()
	const refused = deferred()
	followSession(client, "agent:main:nowhere", "0-0-000000000000", {
		onMessage: () => assert.fail(),
		onError: refused.resolve,
	})
	assert.equal((await refused.promise).type, "not_found")
	assert.deepEqual(await client.call("ping"), {})
})

test("the state tells what becomes of the connection", async () => {
	let isDown = false
	const client = await opened({
		awayMs: 100,
		fetch: (/** @type {any} */ input, /** @type {any} */ init) =>
			isDown ? Promise.reject(new TypeError("refused")) : fetch(input, init),
	})
	/** @type {string[]} */
	const states = []
	let changed = deferred()
	client.addEventListener("state", () => {
		states.push(client.state)
		changed.resolve()
		changed = deferred()
	})
	let fresh = deferred()
	client.followSessions({onChanged: () => {}, onFresh: () => fresh.resolve()})
	await fresh.promise
	isDown = true
	fresh = deferred()
	client.pause()
	client.resume()
	// Who is held up may be behind, and says so at once.
	assert.deepEqual(states, ["live", "reconnecting"])
	await rejectsWith(client.call("sessions.kill", {key: KEY}), "away")
	while (states.at(-1) !== "away") await changed.promise
	isDown = false
	client.retry()
	await fresh.promise
	const stop = client.followSessions({onChanged: () => {}, onFresh: () => {}})
	stop()
	assert.deepEqual(states, ["live", "reconnecting", "away", "live"])
	await client.close()
	assert.equal(client.state, "refused")
	await rejectsWith(client.call("ping"), "unauthenticated")
})

test("a token that is revoked elsewhere refuses the page, which stops asking", async () => {
	let asked = 0
	const storage = memory()
	/** @type {typeof fetch} */
	const counted = (input, init) => {
		asked += 1
		return fetch(input, init)
	}
	const client = await opened({storage, fetch: counted})
	const other = new Client({base, storage})
	await other.open()
	const fresh = deferred()
	const refused = deferred()
	client.addEventListener("state", () => client.state === "refused" && refused.resolve())
	client.followSessions({onChanged: () => {}, onFresh: fresh.resolve})
	await fresh.promise
	await other.close()
	await refused.promise
	const before = asked
	client.retry()
	await rejectsWith(client.call("ping"), "unauthenticated")
	assert.equal(asked, before + 1)
})

before(() => assert.ok(base && code && tokens.length > 10, "run by tests/web/test_client.py"))
