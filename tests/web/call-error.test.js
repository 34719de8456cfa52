import assert from "node:assert/strict"
import {test} from "node:test"
import {CallError} from "../../sessiond/web/call-error.js"

test("no error is both passing and lasting", () => {
	const kinds = (/** @type {string} */ type) => {
		const error = new CallError(0, type, "")
		return [error.isPassing, error.isLasting]
	}
	for (const type of ["away", "stopping", "overloaded", "storage"]) assert.deepEqual(kinds(type), [true, false])
	for (const type of ["unauthenticated", "forbidden", "not_found", "invalid_params"])
		assert.deepEqual(kinds(type), [false, true])
	assert.deepEqual(kinds("internal"), [false, false])
})
