import {CallError} from "./call-error.js"

/** The daemon sends something every 15 seconds: a silent stream is dead. */
const SILENCE_MS = 40_000
const FIRST_DELAY_MS = 50 // systemd restarts a killed daemon in about 0.2 s
const MAX_DELAY_MS = 2000

export class Streams {
	/** @type {Set<AbortController>} */
	#open = new Set()
	/** @type {Set<() => void>} */
	#waiting = new Set()
	/** @type {Promise<void> | null} */
	#paused = null
	#unpause = () => {}
	#isClosed = false
	#request
	#onState
	#awayMs

	/** @param {Requester} request @param {(state: ConnectionState) => void} onState @param {number} awayMs */
	constructor(request, onState, awayMs) {
		this.#request = request
		this.#onState = onState
		this.#awayMs = awayMs
	}

	/** @param {StreamFollower} follower */
	follow(follower) {
		const stopped = new AbortController()
		void this.#run(follower, stopped.signal)
		return () => stopped.abort()
	}

	pause() {
		this.#paused ??= new Promise((resolve) => {
			this.#unpause = resolve
		})
		for (const stream of this.#open) stream.abort()
	}

	resume() {
		this.#paused = null
		this.#unpause()
		this.retry()
	}

	close() {
		this.#isClosed = true
		for (const stream of this.#open) stream.abort()
		this.resume()
	}

	retry() {
		for (const wake of [...this.#waiting]) wake()
	}

	/** Until `retry` at most. @param {number} ms @param {AbortSignal} [signal] */
	async wait(ms, signal) {
		signal?.throwIfAborted()
		await new Promise((/** @type {(value?: unknown) => void} */ resolve) => {
			const wake = () => {
				clearTimeout(timer)
				signal?.removeEventListener("abort", wake)
				this.#waiting.delete(wake)
				resolve()
			}
			const timer = setTimeout(wake, ms)
			signal?.addEventListener("abort", wake)
			this.#waiting.add(wake)
		})
		signal?.throwIfAborted()
	}

	/** @param {StreamFollower} follower @param {AbortSignal} stopped */
	async #run(follower, stopped) {
		let backoff = new Backoff()
		let lostAt = 0
		const onLive = () => {
			backoff = new Backoff()
			lostAt = 0
			if (follower.isMain) this.#onState("live")
		}
		while (!stopped.aborted && !this.#isClosed) {
			if (this.#paused) {
				await this.#paused
				lostAt = 0
				continue
			}
			const error = await this.#read(follower, stopped, onLive)
			if (stopped.aborted) return
			if (this.#paused && !this.#isClosed) continue
			if (error?.isLasting) {
				follower.onError?.(error)
				return
			}
			if (this.#isClosed) break
			lostAt ||= Date.now()
			if (follower.isMain) this.#onState(Date.now() - lostAt < this.#awayMs ? "reconnecting" : "away")
			await this.wait(Math.max(backoff.next(), error?.retryAfterMs ?? 0), stopped).catch(() => {})
		}
		if (!stopped.aborted) follower.onError?.(new CallError(-32001, "unauthenticated", "This page was closed."))
	}

	/** @param {StreamFollower} follower @param {AbortSignal} stopped @param {() => void} onLive */
	async #read(follower, stopped, onLive) {
		const stream = new AbortController()
		const signal = AbortSignal.any([stopped, stream.signal])
		const end = () => stream.abort()
		this.#open.add(stream)
		let timer = setTimeout(end, SILENCE_MS)
		const onAlive = () => {
			clearTimeout(timer)
			timer = setTimeout(end, SILENCE_MS)
		}
		try {
			const {path, headers} = follower.request()
			const response = await this.#request(path, {...headers, Accept: "text/event-stream"}, signal)
			// Another program may have the port.
			const isStream = response.headers.get("content-type")?.startsWith("text/event-stream")
			if (!isStream || !response.body) return CallError.away(null)
			onLive()
			for await (const {name, data} of readEvents(response.body, onAlive)) {
				const parsed = JSON.parse(data)
				if (name === "error") return new CallError(0, parsed.error.type, parsed.error.message, parsed.error)
				await follower.onEvent(name, parsed)
				if (signal.aborted) return null
			}
			return null
		} catch (error) {
			if (error instanceof CallError) return error
			// A fault of a handler is not to be hidden.
			if (!signal.aborted)
				setTimeout(() => {
					throw error
				})
			return null
		} finally {
			clearTimeout(timer)
			this.#open.delete(stream)
			stream.abort()
		}
	}
}

/** At random: pages do not come back all at once. */
export class Backoff {
	#attempt = 0

	next() {
		const delay = Math.min(FIRST_DELAY_MS * 2 ** Math.min(this.#attempt, 16), MAX_DELAY_MS)
		this.#attempt += 1
		return delay * (0.5 + Math.random() / 2)
	}
}

/** `EventSource` sends no token. Source: HTML Living Standard, 9.2. */
export class EventParser {
	/** @type {string[]} */
	#line = []
	#name = ""
	/** @type {string[]} */
	#data = []

	/** @param {string} chunk */
	push(chunk) {
		/** @type {ServerEvent[]} */
		const events = []
		const [rest = "", ...begun] = chunk.split("\n")
		this.#line.push(rest)
		for (const next of begun) {
			// A message may be megabytes.
			const line = this.#line.join("").replace(/\r$/, "")
			this.#line = [next]
			if (line !== "") this.#take(line)
			else if (this.#data.length > 0) events.push({name: this.#name || "message", data: this.#data.join("\n")})
			if (line === "") [this.#name, this.#data] = ["", []]
		}
		return events
	}

	/** @param {string} line */
	#take(line) {
		const [, field, value = ""] = /^([^:]*)(?:: ?(.*))?$/s.exec(line) ?? []
		if (field === "event") this.#name = value
		else if (field === "data") this.#data.push(value)
	}
}

/** `onAlive` is called for comments, too. @param {ReadableStream<Uint8Array>} body @param {() => void} [onAlive] */
export async function* readEvents(body, onAlive = () => {}) {
	const parser = new EventParser()
	const decoder = new TextDecoder()
	const reader = body.getReader()
	try {
		for (;;) {
			// A lost connection is an end like any other.
			const {done, value} = await reader.read().catch(() => ({done: true, value: undefined}))
			if (done) return
			onAlive()
			yield* parser.push(decoder.decode(value, {stream: true}))
		}
	} finally {
		await reader.cancel().catch(() => {})
	}
}
