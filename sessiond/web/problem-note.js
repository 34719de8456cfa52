import {button, fill, h} from "./element.js"
import {safeText} from "./plain-text.js"

/** @param {unknown} problem @param {{what?: string, again?: () => unknown}} [how] */
export function problemNote(problem, {what = "", again} = {}) {
	return h(
		"p",
		{class: "problem", role: "alert"},
		what && h("strong", {}, `${what} `),
		sentenceOf(problem),
		again && " ",
		again && button("Try again", again),
	)
}

/**
 * An error of the work stands in its place.
 * @template T @param {Element} place @param {string} what @param {() => Promise<T>} work
 */
export async function attempt(place, what, work) {
	try {
		const done = await work()
		fill(place)
		return done
	} catch (problem) {
		fill(place, problemNote(problem, {what}))
		return undefined
	}
}

/** @param {string} what @param {string} [more] */
export function readOnlyNote(what, more = "") {
	const page = h("code", {}, "sessiond web --write")
	return h("p.hint", {}, "This page may only read. ", page, ` opens one that may ${what}.${more}`)
}

/** @param {unknown} problem */
function sentenceOf(problem) {
	const {type, message} = /** @type {{type?: string, message?: string}} */ (problem ?? {})
	switch (type) {
		case "away":
			return "The daemon does not answer. `sessiond status` says whether it runs. The page goes on by itself."
		case "unauthenticated":
			return "This page is not signed in any more. Run `sessiond web` again."
		case "forbidden":
			return `${asSentence(message)}${/\bscope\b/.test(message ?? "") ? " `sessiond web --help` says how to open a page that may." : ""}`
		case "not_found":
			return "It is not there any more, or this page may not see it."
		default:
			return asSentence(message)
	}
}

/** @param {string | undefined} message */
function asSentence(message) {
	const text = safeText(message || "Something went wrong.")
	return /[.!?]$/.test(text) ? text : `${text}.`
}
