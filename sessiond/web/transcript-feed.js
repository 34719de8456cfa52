/** Tells `change`, `live`, `problem`. */

import {followSession, readForward} from "./followed-session.js"
import {TranscriptWindow} from "./transcript-window.js"

// As many as a screen has.
const FIRST_PAGE = 12
const PAGE = 60
const MOST_LIVE_TOOLS = 50
const MOST_LIVE_TEXT = 64 * 1024
const WHOLE_BYTES = 16 * 1024 * 1024

export class TranscriptFeed extends EventTarget {
	/** @param {Client} client @param {string} key @param {Schedule} [schedule] */
	constructor(client, key, schedule = queueMicrotask) {
		super()
		this.client = client
		this.key = key
		this.schedule = schedule
		this.shown = new TranscriptWindow()
		/** @type {Question[]} */
		this.questions = []
		this.isReady = false
		this.isRedacted = false
		this.skipped = 0
		/** @type {unknown} */
		this.problem = null
		this.liveText = ""
		this.liveRun = ""
		/** @type {QueuedMessage[]} */
		this.queued = []
		/** @type {string | undefined} */
		this.currentRun = undefined
		/** @type {Map<string, LiveTool>} */
		this.liveTools = new Map()
		this.isFollowed = true
		this.isStopped = false
		/** @type {Set<string>} */
		this.telling = new Set()
		this.loading = {older: false, newer: false}
		this.unfollow = () => {}
	}

	/** @param {string} [cursor] */
	async open(cursor) {
		this.unfollow()
		this.problem = null
		try {
			const newest = await this.page(cursor === undefined ? {} : {limit: 1})
			const page = cursor === undefined ? newest : await this.page({cursor})
			if (this.isStopped) return
			this.noteRuns(newest)
			this.shown.newestSeq = newest.positions.at(-1)?.seq ?? 0
			this.shown.begin(page, (page.positions.at(-1)?.seq ?? 0) >= this.shown.newestSeq)
			this.isRedacted = page.contentRedacted === true
			this.skipped = page.skipped
			this.isReady = true
			this.follow(newest.cursor)
		} catch (problem) {
			this.fail(problem)
		}
		this.tell("change")
	}

	/** @param {string} cursor */
	follow(cursor) {
		this.unfollow()
		this.unfollow = followSession(this.client, this.key, cursor, {
			onMessage: (event) => this.take(event),
			onDelta: ({runId, text, omitted, soFar}) => {
				this.begin(runId)
				if (soFar) this.liveText = ""
				this.liveText += omitted ? "\n[…]\n" : (text ?? "")
				if (this.liveText.length > MOST_LIVE_TEXT) this.liveText = `[…]${this.liveText.slice(-MOST_LIVE_TEXT / 2)}`
				this.tell("live")
			},
			onTool: (event) => this.takeTool(event),
			onResync: ({reason}) => reason !== "lagged" && !this.isStopped && this.open(),
			onError: (problem) => this.fail(problem),
		})
	}

	/** @param {any} event */
	take(event) {
		if (event.message?.role === "assistant") this.liveText = ""
		if (event.message?.role === "toolResult") this.liveTools.delete(event.message.toolCallId)
		for (const block of Array.isArray(event.message?.content) ? event.message.content : []) {
			if (block?.type === "toolCall") this.liveTools.delete(block.id)
		}
		this.shown.put(event)
		if (this.isFollowed) this.shown.trimStart()
		else this.shown.trimEnd()
		this.tell("change")
		this.tell("live")
	}

	/** @param {any} event */
	takeTool({runId, toolCallId, name, args, phase}) {
		this.begin(runId)
		const known = this.liveTools.get(toolCallId)
		this.liveTools.set(toolCallId, {id: toolCallId, name, args: args ?? known?.args, phase})
		if (this.liveTools.size > MOST_LIVE_TOOLS) this.liveTools.delete(this.liveTools.keys().next().value ?? "")
		this.tell("live")
	}

	/** @param {string} runId */
	begin(runId) {
		if (runId !== this.liveRun) this.endLive()
		this.liveRun = runId
	}

	endLive() {
		if (this.liveText === "" && this.liveTools.size === 0) return
		this.liveText = ""
		this.liveTools.clear()
		this.tell("live")
	}

	/** How runs ended, what waits for one, which files came: no event says it. */
	async readRuns() {
		const page = await this.page({})
		this.shown.note(page)
		if (this.shown.runs.has(this.liveRun)) this.endLive()
		this.noteRuns(page)
		this.tell("change")
	}

	/** @param {HistoryPage} page */
	noteRuns({queued = [], currentRun}) {
		this.queued = queued
		// Where none works, what waits longest is what one sees.
		this.currentRun = currentRun ?? queued[0]?.runId
	}

	async readQuestions() {
		this.questions = (await this.client.call("questions.list", {sessionKey: this.key})).questions
		this.tell("change")
	}

	/** Messages that are not in the transcript yet. */
	get waiting() {
		const written = this.shown.entries.map(({message}) => `${message.role} ${message.timestamp}`)
		return this.queued.filter(({message}) => !written.includes(`${message.role} ${message.timestamp}`))
	}

	async loadOlder() {
		const {olderCursor} = this.shown
		if (olderCursor === null || this.loading.older) return
		this.loading.older = true
		try {
			const page = await this.page({cursor: olderCursor, limit: PAGE})
			if (olderCursor !== this.shown.olderCursor) return
			this.shown.prepend(page)
			this.isRedacted ||= page.contentRedacted === true
			this.skipped += page.skipped
		} catch (problem) {
			this.fail(problem)
		} finally {
			this.loading.older = false
			this.tell("change")
		}
	}

	async loadNewer() {
		const last = this.shown.entries.at(-1)
		if (this.shown.isAtEnd || last === undefined || this.loading.newer) return
		this.loading.newer = true
		try {
			const events = await readForward(this.client, this.key, last.cursor, PAGE)
			if (last !== this.shown.entries.at(-1)) return
			const end = events.at(-1)?.seq ?? last.seq
			this.shown.append(events, events.length < PAGE || end >= this.shown.newestSeq)
		} catch (problem) {
			this.fail(problem)
		} finally {
			this.loading.newer = false
			this.tell("change")
		}
	}

	/** @param {Entry} entry */
	async fetchWhole(entry) {
		const page = await this.page({cursor: entry.cursor, limit: 1, maxBytes: WHOLE_BYTES})
		const [message] = page.messages
		const {id: messageId, timestamp} = page.positions[0] ?? {}
		if (message) this.shown.put({messageId, seq: entry.seq, cursor: entry.cursor, message, timestamp})
		this.tell("change")
	}

	/** @param {Entry} entry */
	async fetchRaw(entry) {
		const page = await this.page({cursor: entry.cursor, limit: 1, raw: true, includeRuns: false})
		return JSON.stringify(page.messages[0] ?? entry.message, null, 2)
	}

	/** @param {Record<string, unknown>} params @returns {Promise<HistoryPage>} */
	page(params) {
		return this.client.call(
			"chat.history",
			{sessionKey: this.key, limit: FIRST_PAGE, includeRuns: true, ...params},
			{isPatient: true},
		)
	}

	stop() {
		this.isStopped = true
		this.unfollow()
	}

	/** @param {unknown} problem */
	fail(problem) {
		this.problem = problem
		this.tell("problem")
	}

	/** @param {string} what */
	tell(what) {
		if (this.telling.has(what) || this.isStopped) return
		this.telling.add(what)
		this.schedule(() => {
			this.telling.delete(what)
			if (!this.isStopped) this.dispatchEvent(new Event(what))
		})
	}
}
