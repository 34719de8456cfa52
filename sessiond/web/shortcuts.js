/** @file The keys of the page, and the list of them. */

import { button, h } from "./element.js";

/** @param {Shortcut[]} shortcuts */
export function listen(shortcuts) {
	const help = helpDialog(shortcuts);
	document.body.append(help);
	addEventListener("keydown", (event) => {
		if (event.defaultPrevented || event.isComposing) return;
		const hasModifier = event.ctrlKey || event.metaKey || event.altKey;
		if (!hasModifier && event.key !== "Escape" && isTyping(event.target)) return;
		if (document.querySelector("dialog[open]") && !hasModifier) return;
		if (event.key === "?" && !hasModifier) {
			event.preventDefault();
			return help.showModal();
		}
		const found = shortcuts.find(({ fits }) => fits?.(event));
		if (!found) return;
		event.preventDefault();
		found.act?.();
	});
	return help;
}

/** @param {string} key */
export const plain = (key) => (/** @type {KeyboardEvent} */ event) =>
	event.key === key && !event.ctrlKey && !event.metaKey && !event.altKey;

/** @param {string} key */
export const withCtrl = (key) => (/** @type {KeyboardEvent} */ event) =>
	event.key.toLowerCase() === key && (event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey;

/** @param {EventTarget | null} target */
function isTyping(target) {
	// A field of a dialog just closed has the focus until the next frame.
	return target instanceof HTMLElement && target.checkVisibility() && /^(input|textarea|select)$/i.test(target.tagName);
}

/** @param {Shortcut[]} shortcuts */
function helpDialog(shortcuts) {
	const lines = shortcuts
		.filter(({ keys }) => keys)
		.map(({ keys, what }) => h("div", {}, h("dt", {}, h("kbd", {}, keys)), h("dd", {}, what)));
	const dialog = h(
		"dialog",
		{ class: "keys", "aria-label": "Keys" },
		h("h2", {}, "Keys"),
		h("dl", {}, lines),
		h(
			"div.buttons",
			{},
			button("Close", () => dialog.close()),
		),
	);
	return dialog;
}
