import {DroppedFiles, fileChooser} from "./dropped-files.js"
import {button, fill, h} from "./element.js"
import {safeLine} from "./plain-text.js"
import {attempt} from "./problem-note.js"

export class SpawnForm extends HTMLElement {
	/** @param {PageContext} page */
	constructor(page) {
		super()
		this.page = page
		this.task = h("textarea", {id: "spawn-task", rows: 6, required: true})
		this.agent = h("select", {id: "spawn-agent"})
		this.label = h("input", {id: "spawn-label", maxlength: 512, autocomplete: "off"})
		this.model = h("input", {id: "spawn-model", autocomplete: "off"})
		this.files = new DroppedFiles()
		this.problem = h("div")
		this.start = button("Start", () => this.spawn(), {class: "primary"})
		this.dialog = h(
			"dialog",
			{class: "spawn", "aria-label": "New task", onkeydown: (event) => this.keyed(event)},
			h("h2", {}, "New task"),
			field("What is to be done", this.task),
			h("div.row", {}, field("Agent", this.agent), field("Label", this.label), field("Model", this.model)),
			field(
				"Files",
				fileChooser((files) => this.addFiles(files), {id: "spawn-files"}),
			),
			this.files,
			this.problem,
			h(
				"div.buttons",
				{},
				h("span.hint", {}, h("kbd", {}, "Ctrl Enter"), " starts it"),
				button("Cancel", () => this.dialog.close()),
				this.start,
			),
		)
		this.append(this.dialog)
	}

	/** @param {KeyboardEvent} event */
	keyed(event) {
		if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void this.spawn()
	}

	/** @param {File[]} [files] */
	async open(files = []) {
		const {dialog, page, agent} = this
		if (!dialog.open) dialog.showModal()
		this.task.focus()
		this.addFiles(files)
		await attempt(this.problem, "The agents cannot be listed.", async () => {
			const answer = await page.client.call("agents_list")
			const agents = /** @type {AgentChoice[]} */ (answer.agents)
			fill(
				agent,
				agents.map(({id, name}) => h("option", {value: id}, name ? `${safeLine(name)} (${id})` : id)),
			)
		})
	}

	/** @param {File[]} files */
	addFiles(files) {
		void attempt(this.problem, "", async () => this.files.add(files))
	}

	async spawn() {
		const {page, task, agent, label, model, files, start, dialog} = this
		if (start.disabled) return
		if (task.value.trim() === "") return task.focus()
		start.disabled = true
		await attempt(this.problem, "The task was not started.", async () => {
			const {status, error, childSessionKey} = await page.client.call("sessions_spawn", {
				task: task.value,
				...(agent.value && {agentId: agent.value}),
				...(label.value.trim() && {label: label.value.trim()}),
				...(model.value.trim() && {model: model.value.trim()}),
				...(await files.read()),
			})
			if (status !== "accepted") throw new Error(error)
			task.value = label.value = ""
			files.leaveOut()
			dialog.close()
			if (childSessionKey) page.open(childSessionKey)
		})
		start.disabled = false
	}
}

/** @param {string} label @param {HTMLElement} element */
const field = (label, element) => h("div", {}, h("label", {for: element.id}, label), element)

customElements.define("spawn-form", SpawnForm)
