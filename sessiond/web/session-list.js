import {agentOf, stateOf} from "./session-state.js"

const PAGE = 200
const LOADED_AT_ONCE = 1000

export class SessionList extends EventTarget {
	/** @param {Client} client @param {Schedule} [schedule] */
	constructor(client, schedule = queueMicrotask) {
		super()
		this.client = client
		this.rows = new SessionRows()
		/** @type {Map<string, Question>} */
		this.questions = new Map()
		/** @type {"loading" | "ready"} */
		this.state = "loading"
		/** @type {string | null} */
		this.olderCursor = null
		/** @type {unknown} */
		this.problem = null
		this.schedule = schedule
		this.isTelling = false
		this.stop = () => {}
	}

	/** @param {Promise<ListAnswer>} firstRows */
	start(firstRows) {
		this.showFirst(firstRows).catch(() => {})
		this.stop = this.client.followSessions({
			onChanged: (change) => this.apply(change),
			onFresh: () => this.load(),
			onQuestion: ({question, id}) => (question ? this.putQuestions([question]) : this.closeQuestion(id)),
		})
	}

	/** @param {Promise<ListAnswer>} firstRows */
	async showFirst(firstRows) {
		const {sessions} = await firstRows
		if (this.state === "ready") return
		for (const row of sessions) this.rows.put(row)
		this.state = "ready"
		this.dispatchEvent(new Event("change"))
	}

	async load() {
		/** @type {Row[]} */
		const rows = []
		try {
			/** @type {string | null} */
			let cursor = null
			do {
				const page = await this.page(cursor)
				rows.push(...page.rows)
				cursor = page.next
			} while (cursor !== null && rows.length < LOADED_AT_ONCE)
			this.olderCursor = cursor
			this.rows.replace(rows, cursor === null)
			const open = await this.client.call("questions.list", {open: true})
			this.questions.clear()
			this.putQuestions(open.questions)
			this.state = "ready"
			this.problem = null
		} catch (problem) {
			this.problem = problem
		}
		this.tell()
	}

	async loadOlder() {
		if (this.olderCursor === null) return
		try {
			const page = await this.page(this.olderCursor)
			for (const row of page.rows) this.rows.put(row)
			this.olderCursor = page.next
			this.problem = null
		} catch (problem) {
			this.problem = problem
		}
		this.tell()
	}

	/** @param {string} search @param {AbortSignal} [signal] */
	async find(search, signal) {
		const found = await this.client.call("sessions.list", {search, limit: 100}, {signal})
		for (const row of found.sessions) this.rows.put(row)
		this.tell()
	}

	/** @param {SessionChange} change */
	apply({sessionKey, phase, row}) {
		if (phase === "delete") this.rows.remove(sessionKey)
		else if (row && !row.archived) this.rows.put(row, sessionKey)
		this.tell()
	}

	/** @param {Question[]} questions */
	putQuestions(questions) {
		for (const question of questions) this.questions.set(question.id, question)
		this.tell()
	}

	get waiting() {
		const asking = [...this.questions.values()].map(({sessionKey}) => sessionKey)
		const waits = [...this.rows.byKey].filter(([key, row]) => stateOf(row) === "waiting" && !asking.includes(key))
		return [...asking, ...waits.map(([key]) => key)]
	}

	/** @param {string} id */
	closeQuestion(id) {
		this.questions.delete(id)
		this.tell()
	}

	/** @param {string | null} cursor @returns {Promise<ListPage>} */
	async page(cursor) {
		const found = await this.client.call("sessions.list", {limit: PAGE, ...(cursor && {cursor})})
		return {rows: found.sessions, next: found.hasMore ? (found.nextCursor ?? null) : null}
	}

	tell() {
		if (this.isTelling) return
		this.isTelling = true
		this.schedule(() => {
			this.isTelling = false
			this.dispatchEvent(new Event("change"))
		})
	}
}

export class SessionRows {
	constructor() {
		/** @type {Map<string, Row>} */
		this.byKey = new Map()
	}

	/** `main` stands under the key of its agent. @param {Row} row */
	keyOf(row) {
		if (row.source !== "sessiond" || row.key.startsWith("agent:")) return row.key
		const agent = agentOf(row)
		return agent ? `agent:${agent}:${row.key}` : row.key
	}

	/** @param {Row} row @param {string} [key] */
	put(row, key = this.keyOf(row)) {
		const {derivedTitle, lastMessagePreview} = {...this.byKey.get(key), ...row}
		const source = (row.machine ?? row.source) + (row.awaySince ? " (away)" : "")
		this.byKey.set(key, {...row, source, ...(derivedTitle && {derivedTitle, lastMessagePreview})})
	}

	/** What is older than all of these stays, if there is more. @param {Row[]} rows @param {boolean} isAll */
	replace(rows, isAll) {
		const oldest = rows.at(-1)?.updatedAt ?? 0
		for (const [key, row] of this.byKey) if (isAll || row.updatedAt >= oldest) this.byKey.delete(key)
		for (const row of rows) this.put(row)
	}

	/** @param {string} key */
	remove(key) {
		this.byKey.delete(key)
	}

	/** @param {string} key */
	get(key) {
		const found = this.byKey.get(key)
		if (found) return found
		for (const row of this.byKey.values()) if (row.key === key || row.sessionId === key) return row
		return undefined
	}

	/** @param {string} key */
	childrenOf(key) {
		const children = [...this.byKey.values()].filter((row) => row.spawnedBy === key)
		return children.sort((one, other) => one.createdAt - other.createdAt)
	}

	get size() {
		return this.byKey.size
	}
}
