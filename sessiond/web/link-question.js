import {button, h} from "./element.js"

/** @param {string} address */
export function askToFollow(address) {
	const {host} = new URL(address)
	const dialog = h("dialog", {
		class: "link-question",
		"aria-label": "Open this address?",
		onclose: () => dialog.remove(),
	})
	const open = () => {
		window.open(address, "_blank", "noopener,noreferrer")
		dialog.close()
	}
	dialog.append(
		h("p", {}, "An agent wrote this link. Open it in a new tab?"),
		h("p", {class: "address", dir: "ltr"}, h("strong", {}, host), h("span", {}, address)),
		h(
			"div.buttons",
			{},
			button("Open", open, {class: "primary"}),
			button("Cancel", () => dialog.close(), {autofocus: true}),
		),
	)
	document.body.append(dialog)
	dialog.showModal()
}
