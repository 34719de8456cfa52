/** @file The mark of a state: each has a shape of its own. */

import { h, svg } from "./element.js";
import { STATE_WORDS } from "./session-state.js";

/** @type {Record<SessionState, Shape[]>} */
const SHAPES = {
	waiting: [{ tag: "path", props: { d: "M6 .5 11.5 6 6 11.5 .5 6Z" } }],
	running: [{ tag: "path", props: { d: "M2.5 1 11 6 2.5 11Z" } }],
	queued: [{ tag: "path", props: { d: "M2.5 1.8 10 6 2.5 10.2Z", class: "hollow" } }],
	error: [{ tag: "path", props: { d: "M2 2 10 10M10 2 2 10", class: "stroke" } }],
	aborted: [{ tag: "rect", props: { x: 2.5, y: 2.5, width: 7, height: 7 } }],
	done: [{ tag: "path", props: { d: "M1.5 6.5 4.5 9.5 10.5 2.5", class: "stroke" } }],
	idle: [{ tag: "circle", props: { cx: 6, cy: 6, r: 2.5, class: "hollow" } }],
};

/** @param {SessionState} state @param {boolean} [withWord] */
export function stateMark(state, withWord = false) {
	const shapes = SHAPES[state].map(({ tag, props }) => svg(tag, props));
	const drawing = svg("svg", { viewBox: "0 0 12 12", width: 12, height: 12, "aria-hidden": "true" }, ...shapes);
	const word = h("span", { class: withWord ? "word" : "unseen" }, STATE_WORDS[state]);
	return h("span", { class: `state-mark ${state}` }, drawing, word);
}
