import {h, svg} from "./element.js"
import {STATE_WORDS} from "./session-state.js"

/** Within a square of 12: the path, and whether it is filled. @type {Record<SessionState, [string, string]>} */
const SHAPES = {
	waiting: ["M6 .5 11.5 6 6 11.5 .5 6Z", "full"],
	running: ["M2.5 1 11 6 2.5 11Z", "full"],
	queued: ["M2.5 1.8 10 6 2.5 10.2Z", "hollow"],
	error: ["M2 2 10 10M10 2 2 10", "stroke"],
	aborted: ["M2.5 2.5h7v7h-7Z", "full"],
	done: ["M1.5 6.5 4.5 9.5 10.5 2.5", "stroke"],
	idle: ["M3.5 6a2.5 2.5 0 1 0 5 0 2.5 2.5 0 1 0-5 0", "hollow"],
}

/** @param {SessionState} state @param {boolean} [withWord] */
export function stateMark(state, withWord = false) {
	const [d, kind] = SHAPES[state]
	const shape = svg("path", {d, class: kind})
	const drawing = svg("svg", {viewBox: "0 0 12 12", width: 12, height: 12, "aria-hidden": "true"}, shape)
	return h(
		"span",
		{class: `state-mark ${state}`},
		drawing,
		h(withWord ? "span.word" : "span.unseen", {}, STATE_WORDS[state]),
	)
}
