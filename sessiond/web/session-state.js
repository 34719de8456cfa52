/** @type {Record<SessionState, string>} */
export const STATE_WORDS = {
	waiting: "waits for you",
	running: "running",
	queued: "queued",
	error: "failed",
	aborted: "stopped",
	done: "done",
	idle: "idle",
}

/** @type {Record<SessionState, number>} */
export const STATE_URGENCY = {waiting: 0, running: 1, queued: 1, error: 2, aborted: 3, done: 3, idle: 3}

/** @param {Row} row @returns {SessionState} */
export function stateOf(row) {
	if (row.state === "running" && row.status === "queued") return "queued"
	return Object.hasOwn(STATE_WORDS, row.state) ? row.state : "idle"
}

/** @param {Row} row */
export function isLive(row) {
	return row.state === "running" || (row.state === "waiting" && row.status === "running")
}

/** @param {Row} row */
export function nameOf(row) {
	return row.label || row.displayName || row.title || row.task || row.derivedTitle || row.subject || row.key
}

/** @param {Row} row */
export function agentOf(row) {
	if (row.source !== "sessiond") return ""
	const parts = row.key.split(":")
	if (parts[0] === "agent" && parts.length > 2) return parts[1]
	const folder = /\/agents\/([a-z0-9][a-z0-9_-]*)\/sessions\//.exec(row.transcriptPath)
	return folder?.[1] ?? ""
}
