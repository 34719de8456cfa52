// The same call would fail again.
const LASTING = /^(unauthenticated|forbidden|not_found|invalid_params|method_not_found|unsupported)$/
const PASSING = /^(away|stopping|overloaded|storage)$/

export class CallError extends Error {
	/** @param {number} code @param {string} type @param {string} message @param {Record<string, any>} [data] */
	constructor(code, type, message, data = {}) {
		super(message)
		this.code = code
		this.type = type
		this.data = data
		/** @type {number | undefined} */
		this.retryAfterMs = data.retryAfterMs
	}

	get isLasting() {
		return LASTING.test(this.type)
	}

	get isPassing() {
		return PASSING.test(this.type)
	}

	/** @param {unknown} cause */
	static away(cause) {
		const error = new CallError(0, "away", "The daemon does not answer.")
		error.cause = cause
		return error
	}
}

/** @param {Response} response */
export async function callErrorOf(response) {
	try {
		const {error} = await response.json()
		if (typeof error.code === "number") {
			return new CallError(error.code, error.data?.type ?? "internal", error.message, error.data)
		}
		return new CallError(0, error.type, error.message, error)
	} catch {
		return new CallError(0, "internal", `The daemon answered with the status ${response.status}.`)
	}
}
