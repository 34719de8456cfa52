/** What is read stays where it is; who is at the end stays there. */

import {button, fill, h, keepChildren, nextFrame} from "./element.js"
import {formatDay, formatDuration, formatMoment, formatPlural} from "./format.js"
import {LiveText} from "./live-text.js"
import {speakerOf, textOf} from "./message-parts.js"
import {MessageView} from "./message-view.js"
import {safeLine, safeText} from "./plain-text.js"
import {problemNote} from "./problem-note.js"
import {RichText} from "./rich-text.js"
import {stateOf} from "./session-state.js"
import {stateMark} from "./state-mark.js"
import {TranscriptFeed} from "./transcript-feed.js"
import {piecesOf} from "./transcript-pieces.js"

const AT_END_PX = 48
const EDGE_PX = 1200
const MARKERS = {compaction: "The conversation was summed up here", rewind: "The conversation went back to here"}

export class TranscriptView extends HTMLElement {
	/** @param {PageContext} page */
	constructor(page) {
		super()
		this.page = page
		/** @type {TranscriptFeed | null} */
		this.feed = null
		this.older = h("div.edge")
		this.pieces = h("div.pieces")
		this.live = new LiveText()
		this.queued = h("div")
		this.newer = h("div.edge")
		this.content = h("div.content", {}, this.older, this.pieces, this.live, this.queued, this.newer)
		this.scroller = h(
			"div",
			{class: "scroller", tabindex: 0, role: "region", "aria-label": "Transcript", onscroll: () => this.scrolled()},
			this.content,
		)
		this.pill = button("", () => this.toEnd(), {class: "pill", hidden: true})
		this.append(this.scroller, this.pill)
		for (const moved of ["wheel", "pointerdown", "keydown"])
			this.scroller.addEventListener(moved, () => (this.found = undefined), {passive: true})
		const grown = new ResizeObserver(() => this.settle())
		grown.observe(this.content)
		grown.observe(this.scroller)
		this.isFollowing = true
		/** In sight until the reader moves: what is above it grows. @type {HTMLElement | undefined} */
		this.found = undefined
		this.runs = ""
		// The newest message when the reader left the end.
		this.seenSeq = 0
		/** @type {MessageActions} */
		this.actions = {
			linkTo: (key, props) => page.linkTo(key, props),
			raw: ({entry}) => this.feed?.fetchRaw(entry) ?? Promise.resolve(""),
			whole: ({entry}) => void this.feed?.fetchWhole(entry).catch((problem) => this.feed?.fail(problem)),
		}
	}

	/** @param {string} key @param {string} [cursor] */
	show(key, cursor) {
		this.close()
		const feed = new TranscriptFeed(this.page.client, key, nextFrame)
		this.feed = feed
		this.isFollowing = true
		this.follow(cursor === undefined)
		this.runs = runsOf(this.page.list.rows.get(key))
		fill(this.older, h("p.hint", {}, "Reading …"))
		feed.addEventListener("change", () => this.render())
		feed.addEventListener("live", () => this.renderLive())
		feed.addEventListener("problem", () => this.showProblem())
		return feed
			.open(cursor)
			.then(() => cursor !== undefined && requestAnimationFrame(() => this.feed === feed && this.flashLast()))
	}

	readQuestions() {
		this.feed?.readQuestions().catch(() => {})
	}

	close() {
		this.feed?.stop()
		this.feed = null
		this.found = undefined
		keepPieces(this.pieces, [], this)
		this.live.show("", [])
		fill(this.queued)
		fill(this.newer)
	}

	render() {
		const {feed, page} = this
		if (!feed?.isReady) return
		const children = page.list.rows.childrenOf(feed.key).map((row) => ({key: page.list.rows.keyOf(row), row}))
		const row = page.list.rows.get(feed.key)
		// A run that waits for an answer goes on after it.
		const isLive = row !== undefined && ["running", "waiting"].includes(stateOf(row))
		if (!isLive && row !== undefined) feed.endLive()
		const runs = runsOf(row)
		if (runs !== this.runs) feed.readRuns().catch((problem) => feed.fail(problem))
		this.runs = runs
		this.keepPlace(() => {
			keepPieces(this.pieces, piecesOf(feed.shown, {isLive, children, questions: feed.questions}), this)
			this.renderEdges()
		})
		this.renderLive()
		this.loadNear()
	}

	renderEdges() {
		const {feed, older, page} = this
		if (!feed) return
		const {shown} = feed
		const notes = [
			feed.isRedacted && "Secrets are masked.",
			feed.skipped > 0 && `${formatPlural(feed.skipped, "line")} cannot be read.`,
		]
		const isStart = shown.olderCursor === null
		const continued = isStart && page.list.rows.get(feed.key)?.continues
		const start = shown.entries.length === 0 ? "Nothing was said here yet." : "The beginning."
		const first = isStart ? !continued && start : feed.loading.older && "Reading …"
		if (!feed.problem) {
			const link = continued ? ["It goes on with ", page.linkTo(continued), " "] : []
			const edge = h("p.hint", {}, link, [first, ...notes].filter(Boolean).join(" "))
			// A link stays while it is pressed.
			if (older.textContent !== edge.textContent) fill(older, edge)
			fill(this.newer, shown.isAtEnd ? null : h("p.hint", {}, "Reading …"))
		}
		this.renderPill()
	}

	renderPill() {
		const {pill, feed, isFollowing} = this
		if (!feed) return
		const far = !feed.shown.isAtEnd || (!isFollowing && this.below >= AT_END_PX)
		const beyond = feed.shown.newestSeq - (this.seenSeq || feed.shown.newestSeq)
		pill.hidden = !far || feed.shown.entries.length === 0
		pill.textContent = beyond > 0 ? `${formatPlural(beyond, "new message")} ↓` : "To the end ↓"
	}

	renderLive() {
		const {feed} = this
		if (!feed) return
		const {isAtEnd} = feed.shown
		this.live.show(isAtEnd ? feed.liveText : "", isAtEnd ? [...feed.liveTools.values()] : [])
		keepChildren(this.queued, isAtEnd ? feed.waiting : [], {
			key: ({runId}) => runId,
			version: () => "",
			build: queuedElement,
			update: () => {},
		})
	}

	/** @param {() => void} change */
	keepPlace(change) {
		const {scroller} = this
		if (this.isFollowing || this.found) {
			change()
			return this.settle()
		}
		// A day or a gap goes when older messages come before it.
		const top = topOf(scroller)
		const messages = [...this.pieces.querySelectorAll("message-view")]
		const first = messages.findIndex((message) => message.getBoundingClientRect().bottom > top)
		const seen = messages.slice(Math.max(first, 0), first + 5).map((message) => ({message, before: topOf(message)}))
		change()
		const anchor = seen.find(({message}) => message.isConnected)
		if (anchor) scroller.scrollTop += topOf(anchor.message) - anchor.before
	}

	settle() {
		const {scroller, found} = this
		if (found) found.scrollIntoView({block: found.offsetHeight > scroller.clientHeight ? "start" : "center"})
		else if (this.isFollowing) scroller.scrollTop = scroller.scrollHeight
		this.renderPill()
	}

	get below() {
		const {scroller} = this
		return scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight
	}

	scrolled() {
		const {feed} = this
		if (!feed?.isReady) return
		this.follow(!this.found && feed.shown.isAtEnd && this.below < AT_END_PX)
		this.renderPill()
		this.loadNear()
	}

	/** @param {boolean} isFollowing */
	follow(isFollowing) {
		const {feed} = this
		if (this.isFollowing && !isFollowing) this.seenSeq = feed?.shown.newestSeq ?? 0
		this.isFollowing = isFollowing
		if (feed) feed.isFollowed = isFollowing
	}

	loadNear() {
		const {feed} = this
		if (!feed?.isReady || feed.problem) return
		if (this.scroller.scrollTop < EDGE_PX && feed.shown.olderCursor !== null) void feed.loadOlder()
		else if (this.below < EDGE_PX) void feed.loadNewer()
	}

	async toEnd() {
		await this.showEnd()
		this.scroller.focus({preventScroll: true})
	}

	async showEnd() {
		const {feed} = this
		this.found = undefined
		if (!feed?.shown.isAtEnd) await feed?.open()
		if (feed !== this.feed) return
		this.follow(true)
		this.render()
	}

	/** @param {1 | -1} direction */
	async jump(direction) {
		const {scroller, pieces, feed} = this
		const prompts = /** @type {HTMLElement[]} */ ([
			...pieces.querySelectorAll("message-view:is(.from-user, .from-session)"),
		])
		const focused = document.activeElement?.closest("message-view")
		const edge = focused ? topOf(focused) : topOf(scroller) + 8
		const offset = (/** @type {HTMLElement} */ one) => (one === focused ? 0 : topOf(one) - edge)
		const next = direction > 0 ? prompts.find((one) => offset(one) > 8) : prompts.findLast((one) => offset(one) < -8)
		this.found = undefined
		if (next) {
			this.follow(false)
			next.scrollIntoView({block: "start"})
			next.focus({preventScroll: true})
		} else if (direction > 0) await this.toEnd()
		else if (feed?.shown.olderCursor) {
			const {olderCursor} = feed.shown
			await feed.loadOlder()
			if (feed !== this.feed || feed.shown.olderCursor === olderCursor) return
			this.render()
			await this.jump(direction)
		} else scroller.scrollTop = 0
	}

	flashLast() {
		const last = /** @type {HTMLElement | undefined} */ ([...this.pieces.querySelectorAll("message-view")].at(-1))
		if (!last) return
		last.classList.add("found")
		this.found = last
		this.settle()
		last.focus({preventScroll: true})
		void this.feed?.loadNewer()
	}

	showProblem() {
		const {feed} = this
		if (!feed) return
		const again = () => this.show(feed.key)
		const note = () => problemNote(feed.problem, {what: "The transcript cannot be read on.", again})
		fill(this.older, feed.isReady && note())
		fill(this.newer, note())
	}
}

/** @param {Element} element */
const topOf = (element) => element.getBoundingClientRect().top

/** It is another one whenever a run begins or ends, or a message waits. @param {Row | undefined} row */
export const runsOf = (row) => `${row && stateOf(row)} ${row?.queuedRuns} ${row?.startedAt}`

/** @param {QueuedMessage} queued */
function queuedElement({message}) {
	const {who, word} = speakerOf(message)
	const text = new RichText().show(textOf(message))
	return h(
		"div",
		{class: `queued from-${who}`},
		h("div.margin", {}, h("span.who", {}, word), "queued"),
		h("div.body", {}, text, h("p.hint", {}, "It will be read after this turn.")),
	)
}

/** @param {Element} parent @param {Piece[]} pieces @param {TranscriptView} view */
function keepPieces(parent, pieces, view) {
	keepChildren(parent, pieces, {
		key: (piece) => piece.key,
		version: (piece) => piece.version,
		build: (piece) => pieceElement(piece, view),
		update: (node, piece) => {
			if (piece.type === "message") node.show(piece)
			else if (piece.type === "child") fill(node, ...childParts(piece, view))
			else if (piece.type === "question") fill(node, ...questionParts(piece.question))
		},
	})
}

/** @param {Piece} piece @param {TranscriptView} view */
function pieceElement(piece, view) {
	switch (piece.type) {
		case "message":
			return new MessageView(piece, view.actions).show(piece)
		case "day":
			return h("div.day", {}, formatDay(piece.at, Date.now()))
		case "gap":
			return h("div.gap", {}, `${formatDuration(piece.ms)} later`)
		case "marker":
			return h("div.gap", {}, MARKERS[/** @type {keyof typeof MARKERS} */ (piece.kind)] ?? piece.kind)
		case "child":
			return h("div.child", {}, childParts(piece, view))
		case "question":
			return h("div.run", {title: formatMoment(piece.at)}, questionParts(piece.question))
		case "run":
			return h(
				"div",
				{class: `run ${piece.run.status}`},
				runSentence(piece.run),
				piece.run.printed && h("pre", {}, safeText(piece.run.printed)),
			)
	}
}

/** @param {Extract<Piece, {type: "child"}>} piece @param {TranscriptView} view */
function childParts({row, childKey}, view) {
	return [stateMark(stateOf(row)), "Sub-agent ", view.page.linkTo(childKey)]
}

/** @param {Question} question */
function questionParts({title, options, status, answer: {optionId, by, note, reason} = {}}) {
	const words = {
		open: "It waits for an answer",
		answered: by === "owner" ? "You answered" : `${safeLine(by)} answered`,
		expired: "Nobody answered in time",
		withdrawn: "It was taken back",
		policy: "The configuration answered",
	}
	const label = options?.find(({id}) => id === optionId)?.label
	const said = [label, note, reason].filter(Boolean).map((text) => `: ${safeLine(text, 1000)}`)
	return [
		"Asked: ",
		h("bdi", {}, safeLine(title ?? "A question")),
		h("br"),
		h("bdi", {}, words[/** @type {keyof typeof words} */ (status)], ...said),
	]
}

/** @param {RunEnding} run */
function runSentence({status, error}) {
	const words = {
		error: "The run failed",
		timeout: "The run took too long",
		aborted: "The run was stopped",
		ok: "The run ended without a reply",
	}
	const word = words[/** @type {keyof typeof words} */ (status)] ?? `The run ended as ${status}`
	return error ? `${word}: ${safeLine(error, 2000)}` : `${word}.`
}

customElements.define("transcript-view", TranscriptView)
