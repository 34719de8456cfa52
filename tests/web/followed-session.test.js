import assert from "node:assert/strict"
import {test} from "node:test"
import {FollowedSession, offsetOf} from "../../sessiond/web/followed-session.js"

/** @param {number} offset @param {number} seq @param {string} [id] */
function message(offset, seq, id = `m${seq}`, sessionId = "s") {
	return {sessionKey: "k", sessionId, messageId: id, seq, cursor: `${offset}-${seq}-0123456789ab`, message: {}}
}

test("each message is let through once, in order", () => {
	const followed = new FollowedSession("100-2-0123456789ab")
	const seen = [message(120, 3), message(120, 3), message(140, 4), message(120, 3), message(140, 4), message(160, 5)]
	assert.deepEqual(
		seen.map((one) => followed.take(one)),
		["new", null, "new", null, null, "new"],
	)
	assert.equal(followed.cursor, "160-5-0123456789ab")
})

test("a message that the page had and that has grown since is let through as such", () => {
	const followed = new FollowedSession("100-2-0123456789ab")
	assert.equal(followed.take(message(120, 2)), "grown")
	assert.equal(followed.take(message(120, 2)), null)
	assert.equal(followed.take(message(140, 2)), "grown")
	assert.equal(followed.take(message(160, 3)), "new")
	// A result came between: the older one grows behind it.
	assert.equal(followed.take(message(180, 2)), "grown")
})

test("of two messages that one line changes both are let through", () => {
	const followed = new FollowedSession("100-4-0123456789ab")
	const first = {...message(120, 2), cursor: "120-4-0123456789ab"}
	const second = {...message(120, 3), cursor: "120-4-0123456789ab"}
	assert.deepEqual(
		[first, second, second].map((one) => followed.take(one)),
		["grown", "grown", null],
	)
})

test("another message under a known number is none that has grown", () => {
	const followed = new FollowedSession("0-0-0123456789ab")
	assert.equal(followed.take(message(120, 1, "one")), "new")
	assert.equal(followed.take(message(140, 1, "two")), null)
})

test("after a rewrite or a reset everything is new, and after a lag nothing is", () => {
	for (const [reason, kind] of /** @type {const} */ ([
		["lagged", null],
		["rewritten", "new"],
		["reset", "new"],
	])) {
		const followed = new FollowedSession("0-0-0123456789ab")
		followed.take(message(120, 1))
		followed.resync({sessionKey: "k", reason, cursor: "0-0-aaaaaaaaaaaa"})
		assert.equal(followed.cursor, "0-0-aaaaaaaaaaaa")
		assert.equal(followed.take(message(120, 1)), kind, reason)
	}
})

test("the messages of a new session under the key are new", () => {
	const followed = new FollowedSession("0-0-0123456789ab")
	followed.take(message(120, 1))
	assert.equal(followed.take(message(60, 1, "m1", "another")), "new")
})

test("a cursor of another form has no place", () => {
	assert.deepEqual(["start", "", "lines:1-2-x", "x-1-2"].map(offsetOf), [-1, -1, -1, -1])
	assert.equal(new FollowedSession("start").take(message(20, 1)), "new")
})
