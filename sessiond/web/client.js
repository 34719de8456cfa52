import {CallError, callErrorOf} from "./call-error.js"
import {Backoff, Streams} from "./streams.js"

export {CallError} from "./call-error.js"

const STORED = "sessiond.token"
const AWAY_MS = 4000
/** Longer than a restart takes. */
const RECONNECT_MS = 10_000
// They read, or set a given state.
const REPEATABLE = /[._](list|history|search|patch|usage)$/
// The daemon carries them out once for each idempotency key.
const KEYED = new Set(["chat.send", "sessions_spawn"])

export class Client extends EventTarget {
	/** @type {{scopes: string[], expiresAt?: number}} */
	caller = {scopes: []}
	/** @type {ConnectionState} */
	#state = "connecting"
	#token = ""
	#base
	#fetch
	#storage
	#streams

	/** @param {ClientOptions} [options] */
	constructor({fetch, storage = globalThis.sessionStorage, base = "", awayMs = AWAY_MS} = {}) {
		super()
		this.#fetch = fetch ?? globalThis.fetch.bind(globalThis)
		this.#storage = storage
		this.#base = base
		this.#streams = new Streams(
			(path, headers, signal) => this.#request(path, {headers, signal}),
			(state) => this.#become(state),
			awayMs,
		)
	}

	get state() {
		return this.#state
	}

	/** Trades the one-time code for a token, or takes the stored one. @param {string} [code] */
	async open(code) {
		if (code) {
			const traded = await this.#post("/page/token", {code})
			this.#storage.setItem(STORED, JSON.stringify(traded))
		}
		const stored = JSON.parse(this.#storage.getItem(STORED) ?? "null")
		if (!stored?.scopes) {
			this.#become("refused")
			throw new CallError(-32001, "unauthenticated", "This page has no token. Run `sessiond web` again.")
		}
		this.#token = stored.token
		this.caller = stored
	}

	/** @param {Scope} scope */
	may(scope) {
		const {scopes} = this.caller
		return scopes.includes(scope) || (scope !== "answer" && scopes.includes("admin"))
	}

	retry() {
		this.#streams.retry()
	}

	pause() {
		if (this.#state === "live") this.#become("reconnecting")
		this.#streams.pause()
	}

	resume() {
		this.#streams.resume()
	}

	async close() {
		this.#streams.close()
		this.#storage.removeItem(STORED)
		try {
			await this.#post("/page/close", {})
		} finally {
			this.#token = ""
			this.#become("refused")
		}
	}

	/**
	 * What does no harm twice is repeated for some seconds; with `isPatient` until the daemon is back.
	 * @param {string} method @param {Record<string, unknown>} [params]
	 * @param {{signal?: AbortSignal, isPatient?: boolean}} [options]
	 */
	async call(method, params = {}, {signal, isPatient} = {}) {
		const backoff = new Backoff()
		const until = Date.now() + RECONNECT_MS
		const key = KEYED.has(method) && {idempotencyKey: `page-${crypto.randomUUID()}`}
		const request = {jsonrpc: "2.0", id: 1, method, params: {...key, ...params}}
		const isRepeatable = REPEATABLE.test(method) || KEYED.has(method)
		for (;;) {
			try {
				return (await this.#post("/rpc", request, signal)).result
			} catch (error) {
				if (!(isRepeatable && error instanceof CallError && error.isPassing)) throw error
				if (Date.now() > until && !(isPatient && error.type === "away")) throw error
				await this.#streams.wait(Math.max(backoff.next(), error.retryAfterMs ?? 0), signal)
			}
		}
	}

	/** Returns what ends it. @param {StreamFollower} follower */
	follow(follower) {
		return this.#streams.follow(follower)
	}

	/** Returns what ends it. @param {SessionsFollower} follower */
	followSessions({onChanged, onFresh, onQuestion, onError}) {
		return this.follow({
			isMain: true,
			request: () => ({path: "/events", headers: {}}),
			onEvent: async (name, data) => {
				if (name === "changed") onChanged(data)
				else if (name.startsWith("question")) onQuestion?.(data)
				else await onFresh()
			},
			onError,
		})
	}

	/** @param {string} path @param {Record<string, unknown>} body @param {AbortSignal} [signal] */
	async #post(path, body, signal) {
		const headers = {"Content-Type": "application/json"}
		const response = await this.#request(path, {method: "POST", headers, body: JSON.stringify(body), signal})
		try {
			return await response.json()
		} catch (error) {
			throw signal?.aborted ? signal.reason : CallError.away(error)
		}
	}

	/** @param {string} path @param {RequestInit} init */
	async #request(path, {headers, ...init}) {
		const sent = this.#token
		const all = new Headers(headers)
		if (sent) all.set("Authorization", `Bearer ${sent}`)
		let response
		try {
			response = await this.#fetch(this.#base + path, {
				...init,
				headers: all,
				credentials: "omit",
				cache: "no-store",
				redirect: "error",
				referrerPolicy: "no-referrer",
			})
		} catch (error) {
			throw init.signal?.aborted ? init.signal.reason : CallError.away(error)
		}
		if (response.ok) return response
		const error = await callErrorOf(response)
		if (error.type === "unauthenticated" && sent !== "" && sent === this.#token) {
			this.#streams.close()
			this.#become("refused")
		}
		throw error
	}

	/** @param {ConnectionState} state */
	#become(state) {
		if (state === this.#state || (this.#state === "refused" && !this.#token)) return
		this.#state = state
		this.dispatchEvent(new Event("state"))
	}
}
