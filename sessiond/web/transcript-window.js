/** Pages at one end push out the other. */

import {timeOf} from "./message-parts.js"

const MOST_ENTRIES = 400

export class TranscriptWindow {
	constructor(most = MOST_ENTRIES) {
		this.most = most
		/** @type {Entry[]} */
		this.entries = []
		/** @type {string | null} */
		this.olderCursor = null
		this.isAtEnd = true
		this.newestSeq = 0
		/** @type {Map<string, RunEnding>} */
		this.runs = new Map()
		/** @type {Map<number, Marker>} */
		this.markers = new Map()
		/** @type {Map<number, SentFiles>} */
		this.files = new Map()
	}

	/** @param {HistoryPage} page @param {boolean} isAtEnd */
	begin(page, isAtEnd) {
		this.entries = entriesOf(page)
		this.runs.clear()
		this.markers.clear()
		this.files.clear()
		this.note(page)
		this.olderCursor = page.hasMore ? (page.nextCursor ?? null) : null
		this.isAtEnd = isAtEnd
		this.newestSeq = Math.max(this.newestSeq, this.lastSeq)
	}

	/** @param {HistoryPage} page */
	prepend(page) {
		const known = new Set(this.entries.map(({id}) => id))
		this.entries.unshift(...entriesOf(page).filter(({id}) => !known.has(id)))
		this.note(page)
		this.olderCursor = page.hasMore ? (page.nextCursor ?? null) : null
		this.trimEnd()
	}

	/** @param {PlacedMessage[]} events @param {boolean} isEnd */
	append(events, isEnd) {
		for (const event of events) this.put(event, true)
		this.isAtEnd = isEnd
		this.trimStart()
	}

	/** One behind the end of the window is only counted. @param {PlacedMessage} event */
	put(event, isNext = this.isAtEnd) {
		const entry = entryOf(event)
		this.newestSeq = Math.max(this.newestSeq, entry.seq)
		const at = this.entries.findLastIndex(({id}) => id === entry.id)
		if (at >= 0) {
			this.entries[at] = entry
			return "replaced"
		}
		if (!isNext) return "beyond"
		const behind = this.entries.findLastIndex(({seq}) => seq <= entry.seq)
		this.entries.splice(behind + 1, 0, entry)
		return "added"
	}

	trimStart() {
		const over = this.entries.length - this.most
		if (over <= 0) return
		const gone = this.entries.splice(0, over)
		this.olderCursor = gone.at(-1)?.cursor ?? this.olderCursor
	}

	trimEnd() {
		if (this.entries.length <= this.most) return
		this.entries.length = this.most
		this.isAtEnd = false
	}

	get lastSeq() {
		return this.entries.at(-1)?.seq ?? 0
	}

	/** @param {HistoryPage} page */
	note(page) {
		for (const run of page.runs ?? []) this.runs.set(run.runId, run)
		for (const marker of page.markers ?? []) this.markers.set(marker.seq, marker)
		for (const {seq, files} of page.attachments ?? []) this.files.set(seq, files)
	}
}

/** @param {HistoryPage} page */
function entriesOf(page) {
	return page.messages.map((message, at) => {
		const {id, seq = 0, cursor = "", timestamp} = page.positions[at] ?? {}
		return entryOf({message, messageId: id ?? null, seq, cursor, ...(timestamp !== undefined && {timestamp})})
	})
}

/** @param {PlacedMessage} event */
function entryOf({messageId, seq, cursor, message, timestamp}) {
	// A file may give several messages one id.
	return {id: `${seq} ${messageId ?? ""}`, seq, cursor, message, at: timeOf(message, timestamp)}
}
