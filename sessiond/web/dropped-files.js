import {fill, h, wordButton} from "./element.js"
import {formatBytes} from "./format.js"
import {safeLine} from "./plain-text.js"

// They go into one call, which may have 16 MiB.
const MOST_BYTES = 10 * 1024 * 1024

export class DroppedFiles extends HTMLElement {
	constructor() {
		super()
		/** @type {Attachment[]} */
		this.files = []
		this.hidden = true
	}

	/** @param {Iterable<File>} files */
	async add(files) {
		for (const file of files) {
			const total = this.files.reduce((sum, {bytes}) => sum + bytes, file.size)
			if (total > MOST_BYTES)
				throw new Error(`${file.name} does not fit: all files together may have ${formatBytes(MOST_BYTES)}.`)
			const content = await base64Of(file)
			const type = file.type && {mimeType: file.type}
			this.files.push({bytes: file.size, sent: {name: file.name, content, encoding: "base64", ...type}})
		}
		this.render()
	}

	clear() {
		this.files = []
		this.render()
	}

	get attachments() {
		return this.files.map(({sent}) => sent)
	}

	render() {
		this.hidden = this.files.length === 0
		fill(
			this,
			this.files.map((file) => this.item(file)),
		)
	}

	/** @param {Attachment} file */
	item(file) {
		const remove = () => {
			this.files = this.files.filter((one) => one !== file)
			this.render()
		}
		const name = safeLine(file.sent.name, 60)
		return h(
			"span.file",
			{},
			h("bdi", {}, name),
			` ${formatBytes(file.bytes)} `,
			wordButton("×", remove, {"aria-label": `Leave out ${name}`}),
		)
	}
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
