import {fill, h, keepChildren, wordButton} from "./element.js"
import {formatAge, formatCount} from "./format.js"
import {safeLine} from "./plain-text.js"
import {OpenQuestions} from "./question-card.js"
import {groupOf} from "./session-groups.js"
import {isLive, nameOf, stateOf} from "./session-state.js"
import {emptyHint} from "./session-tree.js"
import {stateMark} from "./state-mark.js"

const MOST = 12
const FAILED_WITHIN_MS = 24 * 60 * 60 * 1000

export class NowView extends HTMLElement {
	/** @param {PageContext} page */
	constructor(page) {
		super()
		this.page = page
		this.sections = [
			new NowSection(page, "Waits for you", (row, key) => stateOf(row) === "waiting" && !isAsking(page, key)),
			new NowSection(page, "Running", isLive),
			new NowSection(
				page,
				"Failed today",
				(row) => stateOf(row) === "error" && Date.now() - row.updatedAt < FAILED_WITHIN_MS,
			),
			new NowSection(page, "Said last", (row) => !isLive(row) && !["waiting", "error"].includes(stateOf(row))),
		]
		const heading = h("h1.unseen", {tabindex: -1}, "What happens now")
		this.questions = new OpenQuestions(heading)
		this.calm = h("p.calm", {}, "Nobody waits for you, and nothing runs.")
		this.empty = emptyHint()
		const keys = h(
			"p.hint.keys",
			{},
			h("kbd", {}, "Ctrl K"),
			" searches everything, ",
			h("kbd", {}, "?"),
			" shows all keys.",
		)
		this.append(h("div.content", {}, heading, this.empty, this.questions, this.calm, this.sections, keys))
		page.list.addEventListener("change", () => this.render())
	}

	render() {
		const {page, sections, calm} = this
		if (this.hidden) return
		this.questions.show(page)
		const items = [...page.list.rows.byKey]
			.map(([key, row]) => ({key, row}))
			.sort((one, other) => other.row.updatedAt - one.row.updatedAt)
		for (const section of sections) section.render(items)
		const [waiting, running] = sections
		this.empty.hidden = page.list.state === "loading" || items.length > 0
		calm.hidden = items.length === 0 || page.list.questions.size > 0 || !waiting.hidden || !running.hidden
	}
}

/** @param {PageContext} page @param {string} key */
const isAsking = (page, key) => [...page.list.questions.values()].some(({sessionKey}) => sessionKey === key)

class NowSection extends HTMLElement {
	/** @param {PageContext} page @param {string} name @param {(row: Row, key: string) => boolean} fits */
	constructor(page, name, fits) {
		super()
		this.page = page
		this.fits = fits
		this.heading = h("h2", {}, name)
		this.name = name
		this.lines = h("ul")
		this.most = MOST
		this.more = wordButton("", () => this.showMore())
		this.append(this.heading, this.lines, this.more)
	}

	showMore() {
		this.most += 4 * MOST
		this.page.list.tell()
	}

	/** @param {Item[]} all */
	render(all) {
		const {page, lines, heading, more, most} = this
		const items = all.filter(({key, row}) => this.fits(row, key))
		this.hidden = items.length === 0
		fill(heading, this.name, items.length > MOST && h("span.count", {}, ` ${formatCount(items.length)}`))
		more.hidden = items.length <= most
		more.textContent = `${formatCount(items.length - most)} more`
		const now = Date.now()
		const parts = (/** @type {Item} */ {key, row}) => {
			const said =
				row.lastMessagePreview && row.lastMessagePreview !== row.title
					? h("bdi.said", {}, safeLine(row.lastMessagePreview.replace(/[`*#>|]+/g, ""), 160))
					: null
			return [
				stateMark(stateOf(row)),
				page.linkTo(key),
				h("span.where", {}, safeLine(groupOf(row, "project").name, 30)),
				h("span.age", {}, formatAge(row.updatedAt, now)),
				said,
			]
		}
		keepChildren(lines, items.slice(0, most), {
			key: ({key}) => key,
			version: ({row}) => [stateOf(row), nameOf(row), formatAge(row.updatedAt, now), row.lastMessagePreview].join(),
			build: (item) => h("li", {}, parts(item)),
			update: (node, item) => fill(node, ...parts(item)),
		})
	}
}

customElements.define("now-section", NowSection)
customElements.define("now-view", NowView)
