/** What a transcript shows from top to bottom. */

import { isAnotherDay } from "./format.js";
import { isToolResult, partsOf, resultOf, speakerOf } from "./message-parts.js";
import { nameOf, stateOf } from "./session-state.js";

const GAP_MS = 60 * 60 * 1000;
const PAUSE_MS = 5 * 60 * 1000;

/** @param {TranscriptWindow} shown @param {{isLive?: boolean, children?: Item[]}} [around] */
export function piecesOf(shown, { isLive = false, children = [] } = {}) {
	const results = resultsByCall(shown.entries);
	const waiting = childrenWithin(shown, children);
	/** @type {Piece[]} */
	const pieces = [];
	/** @type {{at: number | null, who: string}} */
	let last = { at: null, who: "" };
	const endings = [...shown.runs.values()].filter(isWorthSaying).sort((one, other) => one.seq - other.seq);
	let ended = 0;
	for (const entry of shown.entries) {
		while (ended < endings.length && (endings[ended]?.seq ?? 0) < entry.seq) addRun(pieces, endings[ended++]);
		const marker = shown.markers.get(entry.seq);
		if (marker) pieces.push({ type: "marker", key: `marker ${entry.seq}`, version: "", kind: marker.kind });
		if (isToolResult(entry.message) && results.taken.has(entry.id)) continue;
		while (waiting[0] && entry.at !== null && waiting[0].row.createdAt < entry.at) addChild(pieces, waiting.shift());
		addTime(pieces, last.at, entry);
		const piece = messagePiece(entry, results.byMessage.get(entry.id) ?? new Map(), shown.files.get(entry.seq) ?? []);
		const who = speakerKey(entry);
		const paused = entry.at !== null && last.at !== null && entry.at - last.at > PAUSE_MS;
		piece.isFirst = who !== last.who || paused || pieces.at(-1)?.type !== "message";
		piece.version += ` ${piece.isFirst}`;
		pieces.push(piece);
		last = { at: entry.at ?? last.at, who };
	}
	while (waiting.length > 0) addChild(pieces, waiting.shift());
	if (shown.isAtEnd) while (ended < endings.length) addRun(pieces, endings[ended++]);
	const newest = pieces.findLast((piece) => piece.type === "message");
	if (isLive && shown.isAtEnd && newest) {
		newest.isRunning = true;
		newest.version += " live";
	}
	return pieces;
}

/** @param {Piece[]} pieces @param {number | null} before @param {Entry} entry */
function addTime(pieces, before, { id, at }) {
	if (at === null) return;
	if (before === null || isAnotherDay(before, at)) {
		pieces.push({ type: "day", key: `day ${id}`, version: "", at });
	} else if (at - before > GAP_MS) {
		pieces.push({ type: "gap", key: `gap ${id}`, version: "", ms: at - before });
	}
}

/** @param {Entry} entry @param {Map<string, Entry>} results @param {SentFiles} files @returns {MessagePiece} */
function messagePiece(entry, results, files) {
	const version = [entry.cursor, ...[...results.values()].map(({ cursor }) => cursor)].join(" ");
	return { type: "message", key: entry.id, version, entry, results, isFirst: false, isRunning: false, files };
}

/** Those that began while what is shown was said. @param {TranscriptWindow} shown @param {Item[]} children */
function childrenWithin(shown, children) {
	const from = shown.olderCursor === null ? -Infinity : (shown.entries.find(({ at }) => at !== null)?.at ?? -Infinity);
	const to = shown.isAtEnd ? Infinity : (shown.entries.findLast(({ at }) => at !== null)?.at ?? Infinity);
	return children
		.filter(({ row }) => row.createdAt >= from && row.createdAt <= to)
		.sort((one, other) => one.row.createdAt - other.row.createdAt);
}

/** @param {Piece[]} pieces @param {Item | undefined} child */
function addChild(pieces, child) {
	if (!child) return;
	const version = `${stateOf(child.row)} ${nameOf(child.row)}`;
	pieces.push({ type: "child", key: `child ${child.key}`, version, childKey: child.key, row: child.row });
}

/** @param {Entry} entry */
function speakerKey({ message }) {
	const { who, word, from } = speakerOf(message);
	return `${who} ${word} ${from}`;
}

/** @param {RunEnding} run */
const isWorthSaying = (run) => run.status !== "ok" || (!run.replied && Boolean(run.printed));

/** @param {Piece[]} pieces @param {RunEnding | undefined} run */
function addRun(pieces, run) {
	if (run) pieces.push({ type: "run", key: `run ${run.runId}`, version: run.status, run });
}

/** Each call has one; a result whose call is not here stands alone. @param {Entry[]} entries */
function resultsByCall(entries) {
	/** @type {Map<string, string>} */
	const callers = new Map();
	/** @type {Map<string, Map<string, Entry>>} */
	const byMessage = new Map();
	const taken = new Set();
	for (const entry of entries) {
		if (!isToolResult(entry.message)) {
			for (const part of partsOf(entry.message))
				if (part.kind === "toolCall" && part.id) callers.set(part.id, entry.id);
			continue;
		}
		const { callId } = resultOf(entry.message);
		const caller = callers.get(callId);
		if (caller === undefined) continue;
		const results = byMessage.get(caller) ?? new Map();
		byMessage.set(caller, results.set(callId, entry));
		taken.add(entry.id);
	}
	return { byMessage, taken };
}
