import {h} from "./element.js"

const PATIENCE_MS = 5000

/** @param {string} label @param {string} question @param {() => unknown} act @param {{class?: string}} [props] */
export function confirmButton(label, question, act, props = {}) {
	/** @type {ReturnType<typeof setTimeout> | undefined} */
	let timer
	const button = h("button", {type: "button", ...props, onclick: press, onblur: calm, onkeydown: onEscape}, label)

	async function press() {
		if (!button.classList.contains("asking")) {
			button.classList.add("asking")
			button.textContent = question
			timer = setTimeout(calm, PATIENCE_MS)
			return
		}
		calm()
		button.disabled = true
		try {
			await act()
		} finally {
			button.disabled = false
		}
	}
	function calm() {
		clearTimeout(timer)
		button.classList.remove("asking")
		button.textContent = label
	}
	/** @param {KeyboardEvent} event */
	function onEscape(event) {
		if (event.key !== "Escape" || !button.classList.contains("asking")) return
		event.stopPropagation()
		calm()
	}
	return Object.assign(button, {calm})
}
