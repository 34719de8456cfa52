import {isAnotherDay} from "./format.js"
import {isToolResult, partsOf, resultOf, speakerOf} from "./message-parts.js"
import {nameOf, stateOf} from "./session-state.js"

const GAP_MS = 60 * 60 * 1000
const PAUSE_MS = 5 * 60 * 1000

/** @param {TranscriptWindow} shown @param {{isLive?: boolean, children?: Item[], questions?: Question[]}} [around] */
export function piecesOf(shown, {isLive = false, children = [], questions = []} = {}) {
	const results = resultsByCall(shown.entries)
	const asked = questions.map((question) => questionPiece(question, results.callers))
	const waiting = within(shown, [...children.map(childPiece), ...asked])
	/** @type {Piece[]} */
	const pieces = []
	/** @type {{at: number | null, who: string}} */
	let last = {at: null, who: ""}
	const endings = [...shown.runs.values()].filter(isWorthSaying).sort((one, other) => one.seq - other.seq)
	let ended = 0
	for (const entry of shown.entries) {
		while (ended < endings.length && (endings[ended]?.seq ?? 0) < entry.seq) addRun(pieces, endings[ended++])
		const marker = shown.markers.get(entry.seq)
		if (marker) pieces.push({type: "marker", key: `marker ${entry.seq}`, version: "", kind: marker.kind})
		if (isToolResult(entry.message) && results.taken.has(entry.id)) continue
		while (waiting[0] && entry.at !== null && waiting[0].at < entry.at) pieces.push(...waiting.splice(0, 1))
		addTime(pieces, last.at, entry)
		const piece = messagePiece(entry, results.byMessage.get(entry.id) ?? new Map(), shown.files.get(entry.seq) ?? [])
		const who = speakerKey(entry)
		const paused = entry.at !== null && last.at !== null && entry.at - last.at > PAUSE_MS
		piece.isFirst = who !== last.who || paused || pieces.at(-1)?.type !== "message"
		piece.version += ` ${piece.isFirst}`
		pieces.push(piece)
		last = {at: entry.at ?? last.at, who}
	}
	pieces.push(...waiting)
	if (shown.isAtEnd) while (ended < endings.length) addRun(pieces, endings[ended++])
	const newest = pieces.findLast((piece) => piece.type === "message")
	if (isLive && shown.isAtEnd && newest) {
		newest.isRunning = true
		newest.version += " live"
	}
	return pieces
}

/** @param {Piece[]} pieces @param {number | null} before @param {Entry} entry */
function addTime(pieces, before, {id, at}) {
	if (at === null) return
	if (before === null || isAnotherDay(before, at)) {
		pieces.push({type: "day", key: `day ${id}`, version: "", at})
	} else if (at - before > GAP_MS) {
		pieces.push({type: "gap", key: `gap ${id}`, version: "", ms: at - before})
	}
}

/** @param {Entry} entry @param {Map<string, Entry>} results @param {SentFiles} files @returns {MessagePiece} */
function messagePiece(entry, results, files) {
	const version = [
		entry.cursor,
		entry.message.omitted && "cut",
		files.length,
		...[...results.values()].map(({cursor}) => cursor),
	].join(" ")
	return {type: "message", key: entry.id, version, entry, results, isFirst: false, isRunning: false, files}
}

/** @param {TranscriptWindow} shown @param {BesidePiece[]} beside */
function within({entries, olderCursor, isAtEnd}, beside) {
	const from = olderCursor === null ? -Infinity : (entries.find(({at}) => at !== null)?.at ?? -Infinity)
	const to = isAtEnd ? Infinity : (entries.findLast(({at}) => at !== null)?.at ?? Infinity)
	return beside.filter(({at}) => at >= from && at <= to).sort((one, other) => one.at - other.at)
}

/** @param {Item} child @returns {BesidePiece} */
function childPiece({key, row}) {
	const version = `${stateOf(row)} ${nameOf(row)}`
	return {type: "child", key: `child ${key}`, version, at: row.createdAt, childKey: key, row}
}

/** @param {Question} question @param {Map<string, Entry>} callers @returns {BesidePiece} */
function questionPiece(question, callers) {
	const {id, status, askedAt, toolCallId = ""} = question
	return {
		type: "question",
		key: `question ${id}`,
		version: status,
		at: callers.get(toolCallId)?.at ?? askedAt,
		question,
	}
}

/** @param {Entry} entry */
function speakerKey({message}) {
	const {who, word, from} = speakerOf(message)
	return `${who} ${word} ${from}`
}

/** @param {RunEnding} run */
const isWorthSaying = (run) => run.status !== "ok" || (!run.replied && Boolean(run.printed))

/** @param {Piece[]} pieces @param {RunEnding | undefined} run */
function addRun(pieces, run) {
	if (run) pieces.push({type: "run", key: `run ${run.runId}`, version: run.status, run})
}

/** @param {Entry[]} entries */
function resultsByCall(entries) {
	/** @type {Map<string, Entry>} */
	const callers = new Map()
	/** @type {Map<string, Map<string, Entry>>} */
	const byMessage = new Map()
	const taken = new Set()
	for (const entry of entries) {
		if (!isToolResult(entry.message)) {
			for (const part of partsOf(entry.message)) if (part.kind === "toolCall" && part.id) callers.set(part.id, entry)
			continue
		}
		const {callId} = resultOf(entry.message)
		const caller = callers.get(callId)?.id
		if (caller === undefined) continue
		const results = byMessage.get(caller) ?? new Map()
		byMessage.set(caller, results.set(callId, entry))
		taken.add(entry.id)
	}
	return {byMessage, taken, callers}
}
