import {fill, h, svg} from "./element.js"
import {fetchExchanges} from "./exchanges.js"
import {formatPlural} from "./format.js"
import {safeLine} from "./plain-text.js"
import {stateOf} from "./session-state.js"
import {stateMark} from "./state-mark.js"

const LINE_PX = 28
const WIDTH_PX = 56

export class ExchangeGraph extends HTMLElement {
	/** @param {PageContext} page */
	constructor(page) {
		super()
		this.page = page
		this.hidden = true
	}

	/** @param {string} key */
	async show(key) {
		this.looking?.abort()
		const looking = new AbortController()
		this.looking = looking
		const {page} = this
		try {
			const {keys, exchanges} = await fetchExchanges(page.client, key, page.list.rows, looking.signal)
			if (!looking.signal.aborted) this.draw(page, keys, exchanges)
		} catch {
			this.hidden = true
		}
	}

	/** @param {PageContext} page @param {string[]} keys @param {Exchange[]} exchanges */
	draw(page, keys, exchanges) {
		this.hidden = exchanges.length === 0
		const height = keys.length * LINE_PX
		const drawing = svg(
			"svg",
			{width: WIDTH_PX, height, viewBox: `0 0 ${WIDTH_PX} ${height}`, "aria-hidden": "true"},
			...exchanges.flatMap((one) => arcOf(one, keys)),
		)
		const lines = keys.map((key, at) => lineElement(page, key, at === 0, sentenceOf(key, exchanges, page)))
		fill(this, h("h2", {}, "Who writes to whom"), h("div.graph", {}, drawing, h("ul", {}, lines)))
	}
}

/** @param {Exchange} exchange @param {string[]} keys */
function arcOf({from, to, messages, isSpawn}, keys) {
	const [start, end] = [keys.indexOf(from), keys.indexOf(to)]
	const shift = end > start ? 0.65 : 0.35
	const [y1, y2, x] = [(start + shift) * LINE_PX, (end + 1 - shift) * LINE_PX, WIDTH_PX - 8]
	const deep = x - Math.min(x, 12 + 6 * Math.abs(end - start))
	const kind = messages > 0 ? "messages" : isSpawn ? "spawn" : ""
	return [
		svg("path", {class: kind, d: `M${x} ${y1}C${deep} ${y1} ${deep} ${y2} ${x} ${y2}`}),
		svg("path", {class: `${kind} arrow`, d: `M${x + 4} ${y2}l-6 -4v8Z`}),
	]
}

/** @param {PageContext} page @param {string} key @param {boolean} isSelf @param {string} sentence */
function lineElement(page, key, isSelf, sentence) {
	const row = page.list.rows.get(key)
	const name = page.nameOf(key)
	const mark = row ? stateMark(stateOf(row)) : null
	const word = isSelf ? h("strong", {}, h("bdi", {}, name)) : page.linkTo(key)
	return h("li", {}, mark, word, h("span.unseen", {}, sentence))
}

/** @param {string} key @param {Exchange[]} exchanges @param {PageContext} page */
function sentenceOf(key, exchanges, page) {
	const words = exchanges
		.filter(({from}) => from === key)
		.map(({to, messages, isSpawn}) => {
			const what = messages > 0 ? `wrote ${formatPlural(messages, "message")} to` : isSpawn ? "began" : ""
			return `${what} ${safeLine(page.nameOf(to), 40)}`
		})
	return words.length > 0 ? words.join(", ") : "wrote to nobody here"
}

customElements.define("exchange-graph", ExchangeGraph)
