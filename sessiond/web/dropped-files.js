import {fill, h, wordButton} from "./element.js"
import {formatBytes} from "./format.js"
import {safeLine} from "./plain-text.js"

// They go into one call, which may have 16 MiB.
const MOST_BYTES = 10 * 1024 * 1024

export class DroppedFiles extends HTMLElement {
	constructor() {
		super()
		/** @type {File[]} */
		this.files = []
		this.hidden = true
	}

	/** @param {File[]} files */
	add(files) {
		const wanted = [...this.files, ...files]
		if (wanted.reduce((sum, {size}) => sum + size, 0) > MOST_BYTES)
			throw new Error(`That does not fit: all files together may have ${formatBytes(MOST_BYTES)}.`)
		this.files = wanted
		this.render()
	}

	/** @param {File[]} files */
	leaveOut(files = this.files) {
		this.files = this.files.filter((one) => !files.includes(one))
		this.render()
	}

	async read() {
		const sent = this.files.map(async (file) => ({
			name: file.name,
			content: await base64Of(file),
			encoding: "base64",
			...(file.type && {mimeType: file.type}),
		}))
		return sent.length > 0 && {attachments: await Promise.all(sent)}
	}

	render() {
		this.hidden = this.files.length === 0
		fill(
			this,
			this.files.map((file) => this.item(file)),
		)
	}

	/** @param {File} file */
	item(file) {
		const name = safeLine(file.name, 60)
		return h(
			"span.file",
			{},
			h("bdi", {}, name),
			` ${formatBytes(file.size)} `,
			wordButton("×", () => this.leaveOut([file]), {"aria-label": `Leave out ${name}`}),
		)
	}
}

/** The same file may be chosen again. @param {(files: File[]) => void} take @param {Props} props */
export function fileChooser(take, props) {
	const chooser = h("input", {type: "file", multiple: true, ...props})
	chooser.onchange = () => {
		take([...(chooser.files ?? [])])
		chooser.value = ""
	}
	return chooser
}

/** @param {File} file */
async function base64Of(file) {
	const bytes = new Uint8Array(await file.arrayBuffer())
	const pieces = []
	for (let from = 0; from < bytes.length; from += 0x8000)
		pieces.push(String.fromCharCode(...bytes.subarray(from, from + 0x8000)))
	return btoa(pieces.join(""))
}

/** @param {(files: File[]) => void} take */
export function listenForFiles(take) {
	const mark = (/** @type {boolean} */ isOver) => document.body.classList.toggle("dropping", isOver)
	addEventListener("dragover", (event) => {
		if (!event.dataTransfer?.types.includes("Files")) return
		event.preventDefault()
		mark(true)
	})
	addEventListener("dragleave", (event) => event.relatedTarget === null && mark(false))
	addEventListener("drop", (event) => {
		mark(false)
		const files = [...(event.dataTransfer?.files ?? [])]
		if (files.length === 0) return
		event.preventDefault()
		take(files)
	})
}

customElements.define("dropped-files", DroppedFiles)
