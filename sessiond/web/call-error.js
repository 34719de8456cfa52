/** An error of the daemon, or its silence. */

export class CallError extends Error {
  /**
   * @param {number} code the number of JSON-RPC
   * @param {string} type as in protocol.md ("not_found"); "away": the daemon does not answer
   * @param {string} message a sentence for a person
   * @param {Record<string, any>} [data]
   */
  constructor(code, type, message, data = {}) {
    super(message);
    this.name = "CallError";
    this.code = code;
    this.type = type;
    this.data = data;
    /** The fine-grained reason. @type {string | undefined} */
    this.reason = data.code;
    /** @type {number | undefined} */
    this.retryAfterMs = data.retryAfterMs;
  }

  /** @param {unknown} cause */
  static away(cause) {
    const error = new CallError(0, "away", "The daemon does not answer.");
    error.cause = cause;
    return error;
  }
}

/**
 * The error that a response brings: of JSON-RPC (`POST /rpc`), or of another route.
 * @param {Response} response
 * @returns {Promise<CallError>}
 */
export async function callErrorOf(response) {
  try {
    const { error } = await response.json();
    if (typeof error.code === "number") {
      return new CallError(error.code, error.data?.type ?? "internal", error.message, error.data);
    }
    return new CallError(0, error.type, error.message, error);
  } catch {
    return new CallError(0, "internal", `The daemon answered with the status ${response.status}.`);
  }
}
