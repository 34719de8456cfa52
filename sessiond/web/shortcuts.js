import {button, h} from "./element.js"

/** @param {Shortcut[]} shortcuts */
export function listen(shortcuts) {
	const help = helpDialog(shortcuts)
	document.body.append(help)
	const all = [...shortcuts, ["?", "", () => help.showModal()]]
	addEventListener("keydown", (event) => {
		const {key, target} = event
		const withCtrl = event.ctrlKey || event.metaKey
		if (event.defaultPrevented || event.isComposing || event.altKey || (withCtrl && event.shiftKey)) return
		if (!withCtrl && (document.querySelector("dialog[open]") || (key !== "Escape" && isTyping(target)))) return
		const pressed = withCtrl ? `Ctrl ${key.toUpperCase()}` : key
		const act = /** @type {Shortcut | undefined} */ (all.find(([name]) => name === pressed))?.[2]
		if (!act) return
		event.preventDefault()
		act()
	})
	return help
}

/** @param {EventTarget | null} target */
function isTyping(target) {
	// A field of a dialog just closed has the focus until the next frame.
	return target instanceof HTMLElement && target.checkVisibility() && /^(input|textarea|select)$/i.test(target.tagName)
}

/** @param {Shortcut[]} shortcuts */
function helpDialog(shortcuts) {
	const lines = shortcuts.map(([key, what]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)))
	const dialog = h(
		"dialog",
		{class: "keys", "aria-label": "Keys"},
		h("h2", {}, "Keys"),
		h("dl", {}, lines),
		h(
			"div.buttons",
			{},
			button("Close", () => dialog.close()),
		),
	)
	return dialog
}
