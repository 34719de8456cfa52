import {h, wordButton} from "./element.js"

const SAID_MS = 1500

/** @param {string} label @param {() => string | Promise<string>} text @param {string} [what] */
export function copyButton(label, text, what = "") {
	const word = h("span", {"aria-live": "polite"}, label)
	const button = wordButton(word, copy, {class: "copy"})
	if (what) button.setAttribute("aria-label", `${label} ${what}`)
	/** @type {ReturnType<typeof setTimeout> | undefined} */
	let timer

	async function copy() {
		try {
			await navigator.clipboard.writeText(await text())
			word.textContent = "Copied"
		} catch {
			word.textContent = "Not copied"
		}
		clearTimeout(timer)
		timer = setTimeout(() => (word.textContent = label), SAID_MS)
	}
	return button
}
