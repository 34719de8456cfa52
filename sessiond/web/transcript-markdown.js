import {isToolResult, partsOf, speakerOf, timeOf} from "./message-parts.js"
import {summarizeCall} from "./tool-summary.js"

const PAGE = 500
const MOST_MESSAGES = 5000

/** @param {Client} client @param {string} key @param {string} title */
export async function fetchMarkdown(client, key, title) {
	/** @type {HistoryPage[]} */
	const pages = []
	/** @type {string | null | undefined} */
	let cursor
	let count = 0
	do {
		/** @type {HistoryPage} */
		const page = await client.call("chat.history", {sessionKey: key, limit: PAGE, ...(cursor && {cursor})})
		pages.unshift(page)
		count += page.messages.length
		cursor = page.hasMore ? page.nextCursor : null
	} while (cursor && count < MOST_MESSAGES)
	const left = cursor ? ["_Older messages are left out._"] : []
	return `${[`# ${title}`, ...left, ...pages.flatMap(messagesOf)].join("\n\n")}\n`
}

/** @param {HistoryPage} page */
export function messagesOf(page) {
	return page.messages.flatMap((message, at) => {
		if (isToolResult(message)) return []
		const {word, from} = speakerOf(message)
		const time = timeOf(message, page.positions[at]?.timestamp)
		const head = `**${word}${from ? ` ${from}` : ""}**${time === null ? "" : ` ${new Date(time).toISOString()}`}`
		const parts = partsOf(message).flatMap((part) => {
			if (part.kind === "text") return [part.text.trim()]
			return part.kind === "toolCall" ? [`> ${part.name} \`${summarizeCall(part.args).replaceAll("`", "'")}\``] : []
		})
		return parts.length > 0 ? [[head, ...parts].join("\n\n")] : []
	})
}
