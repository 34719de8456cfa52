/** Each message once, and when it has grown. */

/** Returns what ends it. @param {Client} client @param {string} key @param {string} cursor @param {SessionFollower} follower */
export function followSession(client, key, cursor, {onMessage, onDelta, onTool, onResync, onError}) {
	const followed = new FollowedSession(cursor)
	const path = `/sessions/${encodeURIComponent(key)}/history?follow=1&soFar=1`
	return client.follow({
		isMain: false,
		request: () => ({path, headers: {"Last-Event-ID": followed.cursor}}),
		onEvent: (name, data) => {
			if (name === "message") {
				const kind = followed.take(data)
				if (kind) onMessage({...data, grown: kind === "grown"})
			} else if (name === "resync") {
				followed.resync(data)
				onResync?.(data)
			} else if (name === "delta") onDelta?.(data)
			else if (name === "tool") onTool?.(data)
		},
		onError,
	})
}

/**
 * Oldest first; fewer where the session ends.
 * @param {Client} client @param {string} key @param {string} cursor @param {number} limit
 * @returns {Promise<ArrivedMessage[]>}
 */
export async function readForward(client, key, cursor, limit) {
	const newest = await client.call("chat.history", {sessionKey: key, limit: 1})
	const end = Math.max(...newest.positions.map((/** @type {{cursor: string}} */ one) => offsetOf(one.cursor)), -1)
	if (end <= offsetOf(cursor)) return []
	/** @type {Map<string | number, ArrivedMessage>} */
	const found = new Map()
	return new Promise((resolve, reject) => {
		const settle = () => {
			stop()
			resolve([...found.values()])
		}
		const stop = followSession(client, key, cursor, {
			onMessage: (event) => {
				const id = event.messageId ?? event.seq
				if (found.size === limit && !found.has(id)) return settle()
				found.set(id, event)
				if (offsetOf(event.cursor) >= end) settle()
			},
			onResync: ({reason}) => reason !== "lagged" && settle(),
			onError: reject,
		})
	})
}

/** As `sessiond/client/follow.py`. */

export class FollowedSession {
	/** @type {string} */
	cursor
	#sessionId = ""
	#highestSeq = 0
	#offset = 0
	#lastSeq = 0
	/** @type {string | null} */
	#messageId = null

	/** @param {string} cursor */
	constructor(cursor) {
		this.cursor = cursor
		this.#offset = offsetOf(cursor)
		this.#highestSeq = Number(/^\d+-(\d+)-/.exec(cursor)?.[1] ?? 0)
	}

	/** @param {ArrivedMessage} event */
	take({sessionId, messageId, seq, cursor}) {
		const offset = offsetOf(cursor)
		this.#sessionId ||= sessionId
		const isAnother = ![null, messageId].includes(this.#messageId)
		const isKnown = sessionId === this.#sessionId && seq <= this.#highestSeq
		// A line may change several messages, which then have one cursor.
		const isBeside = offset === this.#offset && offset >= 0 && isAnother
		// In an older copy of the file another message may have the number.
		const isOther = seq === this.#lastSeq && isAnother
		const hasGrown = isKnown && ((offset > this.#offset && !isOther) || isBeside)
		if (isKnown && !hasGrown) return null
		this.#highestSeq = sessionId === this.#sessionId ? Math.max(seq, this.#highestSeq) : seq
		this.#sessionId = sessionId
		this.#offset = offset
		this.#lastSeq = seq
		this.#messageId = messageId
		this.cursor = cursor
		return hasGrown ? "grown" : "new"
	}

	/** @param {Resync} event */
	resync({reason, cursor}) {
		if (reason !== "lagged") {
			this.#sessionId = ""
			this.#messageId = null
			this.#highestSeq = 0
			this.#offset = -1
		}
		this.cursor = cursor
	}
}

/** @param {string} cursor */
export function offsetOf(cursor) {
	return Number(/^(\d+)-/.exec(cursor)?.[1] ?? -1)
}
