/** Whether a call is repeated after a lost connection, and after which delay. Does not wait itself. */

const FIRST_DELAY_MS = 50; // systemd restarts a killed daemon in about 0.2 s
const MAX_DELAY_MS = 2000;
/** How long a call waits for a daemon that does not answer: it restarts within a second, or a few more. */
export const RECONNECT_MS = 10_000;

/** Methods that read, or set a given state. */
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
/** Methods with an idempotency key, with which the daemon carries a repeated call out only once. */
const KEYED = new Set(["agent", "chat.send", "sessions.send", "sessions_send", "sessions_spawn"]);
/** Errors after which the daemon may answer soon. */
const PASSING = new Set(["away", "stopping", "overloaded", "storage"]);

/** Errors that stay, however often one asks. */
const LASTING = new Set([
  "unauthenticated",
  "forbidden",
  "not_found",
  "invalid_params",
  "method_not_found",
  "unsupported",
]);

/**
 * Whether asking again brings the same error.
 * @param {string} type the type of an error
 */
export function isLasting(type) {
  return LASTING.has(type);
}

/**
 * Whether the same call may bring a result soon.
 * @param {string} type the type of its error
 */
export function isPassing(type) {
  return PASSING.has(type);
}

/**
 * Whether carrying the method out twice does no harm, with the params of `keyed`.
 * @param {string} method
 */
export function isRepeatable(method) {
  return REPEATABLE.has(method) || KEYED.has(method);
}

/**
 * The params with an idempotency key, where the method takes one and they have none.
 * @param {string} method
 * @param {Record<string, unknown>} params
 * @returns {Record<string, unknown>}
 */
export function keyed(method, params) {
  if (!KEYED.has(method) || params.idempotencyKey !== undefined) return params;
  return { ...params, idempotencyKey: `page-${crypto.randomUUID()}` };
}

/** Delays between attempts: doubled each time, each shortened at random, so that pages do not come back all at once. */
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
