import {fill, h, svg, wordButton} from "./element.js"
import {formatCost, formatCount, formatDay, formatTokens} from "./format.js"
import {safeLine} from "./plain-text.js"
import {problemNote} from "./problem-note.js"
import {lastDays, usageLines, VIEWS} from "./usage-sums.js"

const DAYS = 30
const DAY_MS = 24 * 60 * 60 * 1000
const BAR = {width: 20, gap: 4, height: 120}
const MOST_LINES = 200

export class UsageView extends HTMLElement {
	/** @param {PageContext} page */
	constructor(page) {
		super()
		this.page = page
		/** @type {UsageBy} */
		this.by = "day"
		this.days = DAYS
		this.view = h(
			"select",
			{"aria-label": "Group by", onchange: () => this.regroup()},
			VIEWS.map((value) => h("option", {value}, `by ${value}`)),
		)
		this.span = h(
			"select",
			{"aria-label": "Time", onchange: () => this.load()},
			[7, 30, 90].map((days) => h("option", {value: days, selected: days === DAYS}, `${days} days`)),
		)
		this.body = h("div.content")
		const back = wordButton("‹ Back", () => history.back(), {class: "back"})
		this.append(
			h("div.session-head", {}, back, h("h1", {tabindex: -1}, "Usage"), this.span, this.view),
			h("div", {class: "scroller", tabindex: 0, role: "region", "aria-label": "Usage"}, this.body),
		)
	}

	async load() {
		const {page, body, span} = this
		this.days = Number(span.value)
		try {
			this.usage = await page.client.call("sessions.usage", {
				since: (Math.floor(Date.now() / DAY_MS) + 1 - this.days) * DAY_MS,
			})
			this.render()
		} catch (problem) {
			fill(body, problemNote(problem, {what: "The usage cannot be shown.", again: () => this.load()}))
		}
	}

	regroup() {
		this.by = /** @type {UsageBy} */ (this.view.value)
		this.render()
	}

	render() {
		const {usage, body, by, days} = this
		if (!usage) return
		const {totals} = usage
		if (!totals.totalTokens) return fill(body, h("p.hint", {}, `No tokens were counted in the last ${days} days.`))
		const cost = totals.costUsd === undefined ? "" : `, ${formatCost(totals.costUsd)}`
		const lines = usageLines(usage, by)
		fill(
			body,
			h(
				"p.total",
				{},
				h("strong", {}, `${formatTokens(totals.totalTokens)} tokens${cost}`),
				` in the last ${days} days`,
			),
			chart(lastDays(usage.byDay, days, Date.now())),
			this.table(lines),
		)
	}

	/** @param {string} name */
	nameElement(name) {
		const {page, by} = this
		if (by === "session") return page.linkTo(name)
		return h("bdi", {}, by === "day" ? dayName(name) : safeLine(name, 80))
	}

	/** @param {ReturnType<typeof usageLines>} lines */
	table(lines) {
		const most = Math.max(...lines.map(({sum}) => sum.totalTokens), 1)
		const row = (/** @type {typeof lines[0]} */ {name, sum}) =>
			h(
				"tr",
				{},
				h("th", {scope: "row"}, this.nameElement(name)),
				[sum.inputTokens, sum.outputTokens, sum.cacheRead, sum.totalTokens].map((count) =>
					h("td", {title: formatCount(count ?? 0)}, count ? formatTokens(count) : "–"),
				),
				h("td", {}, sum.costUsd === undefined ? "–" : formatCost(sum.costUsd)),
				h("td", {class: "share", "aria-hidden": "true"}, h("span", {"--share": sum.totalTokens / most})),
			)
		const head = [this.by, "in", "out", "from cache", "all", "cost", ""].map((word) =>
			word ? h("th", {scope: "col"}, word) : h("td"),
		)
		const rest =
			lines.length > MOST_LINES &&
			h("p.hint", {}, `${formatCount(lines.length - MOST_LINES)} smaller ones are left out.`)
		return h(
			"div",
			{},
			h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, lines.slice(0, MOST_LINES).map(row))),
			rest,
		)
	}
}

/** @param {string} day */
const dayName = (day) => formatDay(Date.parse(`${day}T12:00:00Z`), Date.now())

/** @param {ReturnType<typeof lastDays>} days */
function chart(days) {
	const most = Math.max(...days.map(({tokens}) => tokens), 1)
	const width = days.length * (BAR.width + BAR.gap)
	const bars = days.map(({tokens}, at) => {
		const height = tokens === 0 ? 1 : Math.max(2, (tokens / most) * BAR.height)
		const [x, y] = [at * (BAR.width + BAR.gap), BAR.height - height]
		return svg("rect", {x, y, width: BAR.width, height, class: tokens === 0 ? "none" : "bar"})
	})
	const drawing = svg(
		"svg",
		{
			viewBox: `0 0 ${width} ${BAR.height}`,
			preserveAspectRatio: "none",
			role: "img",
			"aria-label": "Tokens a day; the table has the numbers",
		},
		...bars,
	)
	return h(
		"figure.chart",
		{},
		drawing,
		h(
			"figcaption",
			{},
			h("span", {}, dayName(days[0]?.day ?? "")),
			h("span", {}, `at most ${formatTokens(most)} a day`),
			h("span", {}, dayName(days.at(-1)?.day ?? "")),
		),
	)
}

customElements.define("usage-view", UsageView)
