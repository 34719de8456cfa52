/** @file Whether and when a lost call is repeated. */

const FIRST_DELAY_MS = 50; // systemd restarts a killed daemon in about 0.2 s
const MAX_DELAY_MS = 2000;
/** As long as a restart may take. */
export const RECONNECT_MS = 10_000;

/** They read, or set a given state. */
const REPEATABLE = new Set([
  "agent.wait",
  "agents_list",
  "chat.history",
  "daemon.doctor",
  "daemon.status",
  "initialize",
  "ping",
  "rpc.discover",
  "sessions_history",
  "sessions_inbox",
  "sessions_list",
  "sessions_search",
  "sessions.list",
  "sessions.patch",
  "sessions.preview",
  "sessions.resolve",
  "sessions.usage",
  "tokens.list",
  "tokens.revoke",
]);
/** The daemon carries them out once for each idempotency key. */
const KEYED = new Set(["agent", "chat.send", "sessions.send", "sessions_send", "sessions_spawn"]);
const PASSING = new Set(["away", "stopping", "overloaded", "storage"]);

const LASTING = new Set([
  "unauthenticated",
  "forbidden",
  "not_found",
  "invalid_params",
  "method_not_found",
  "unsupported",
]);

/** @param {string} type */
export function isLasting(type) {
  return LASTING.has(type);
}

/** @param {string} type */
export function isPassing(type) {
  return PASSING.has(type);
}

/** @param {string} method */
export function isRepeatable(method) {
  return REPEATABLE.has(method) || KEYED.has(method);
}

/** @param {string} method @param {Record<string, unknown>} params @returns {Record<string, unknown>} */
export function keyed(method, params) {
  if (!KEYED.has(method) || params.idempotencyKey !== undefined) return params;
  return { ...params, idempotencyKey: `page-${crypto.randomUUID()}` };
}

/** Shortened at random: pages do not come back all at once. */
export class Backoff {
  #attempt = 0;

  next() {
    const delay = Math.min(FIRST_DELAY_MS * 2 ** Math.min(this.#attempt, 16), MAX_DELAY_MS);
    this.#attempt += 1;
    return delay * (0.5 + Math.random() / 2);
  }

  reset() {
    this.#attempt = 0;
  }
}
