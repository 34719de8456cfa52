/** @file How a session is doing, in one word: of its row alone. Knows no DOM. */

/** What people read for each state. @type {Record<SessionState, string>} */
export const STATE_WORDS = {
  waiting: "waits for you",
  running: "running",
  queued: "queued",
  error: "failed",
  aborted: "stopped",
  done: "done",
  idle: "idle",
};

/** What wants to be seen first: the lower, the higher up. @type {Record<SessionState, number>} */
export const STATE_URGENCY = { waiting: 0, running: 1, queued: 1, error: 2, aborted: 3, done: 3, idle: 3 };

/** @type {Map<string, SessionState>} */
const OF_STATUS = new Map([
  ["queued", "queued"],
  ["running", "running"],
  ["ok", "done"],
  ["error", "error"],
  ["timeout", "error"],
  ["aborted", "aborted"],
]);

/** @param {Row} row @returns {SessionState} */
export function stateOf(row) {
  if (row.waiting !== undefined || row.state === "waiting") return "waiting";
  if (row.status === "queued" || (row.queuedRuns && row.status !== "running")) return "queued";
  if (row.state !== undefined && Object.hasOwn(STATE_WORDS, row.state)) return /** @type {SessionState} */ (row.state);
  return OF_STATUS.get(row.status ?? "") ?? "idle";
}

/** Whether something happens in it now, or will without a person. @param {Row} row */
export function isLive(row) {
  const state = stateOf(row);
  return state === "running" || state === "queued";
}

/** What a session is called, never empty. @param {Row} row */
export function nameOf(row) {
  return row.label || row.displayName || row.title || row.derivedTitle || row.subject || row.key;
}

/** The agent of a session of ours; nothing for another program's. @param {Row} row */
export function agentOf(row) {
  if (row.source !== "sessiond") return "";
  const parts = row.key.split(":");
  if (parts[0] === "agent" && parts.length > 2) return parts[1] ?? "";
  const folder = /\/agents\/([a-z0-9][a-z0-9_-]*)\/sessions\//.exec(row.transcriptPath);
  return folder?.[1] ?? "";
}
