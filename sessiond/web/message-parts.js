import {objectOr, safeLine, textOr} from "./plain-text.js"

const RESULT_ROLES = new Set(["toolResult", "tool", "bashExecution"])

/** @param {Message} message */
export const isToolResult = (message) => RESULT_ROLES.has(message.role)

// A message may have 100,000 tool calls.
/** @type {WeakMap<Message, Part[]>} */
const taken = new WeakMap()

/** @param {Message} message @returns {Part[]} */
export function partsOf(message) {
	const parts = taken.get(message) ?? takeApart(message)
	taken.set(message, parts)
	return parts
}

/** @param {Message} message @returns {Part[]} */
function takeApart({content}) {
	if (typeof content === "string") return content ? [{kind: "text", text: content}] : []
	if (!Array.isArray(content)) {
		return content === undefined || content === null ? [] : [{kind: "text", text: jsonOf(content)}]
	}
	return content.map(partOf).filter((part) => part !== null)
}

/** @param {unknown} block @returns {Part | null} */
function partOf(block) {
	if (typeof block === "string") return {kind: "text", text: block}
	const {type, text, thinking, id, name, arguments: args, mimeType, data} = objectOr(block)
	switch (type) {
		case "text":
			return textOr(text) ? {kind: "text", text} : null
		case "thinking":
			return textOr(thinking).trim() ? {kind: "thinking", text: thinking} : null
		case "toolCall":
			return {kind: "toolCall", id: textOr(id), name: textOr(name) || "tool", args}
		case "image":
			return {kind: "image", mimeType: textOr(mimeType), data: textOr(data)}
		default:
			return type === undefined ? null : {kind: "other", name: textOr(type, "?")}
	}
}

/** @param {Message} message */
export function textOf(message) {
	return partsOf(message)
		.flatMap((part) => (part.kind === "text" ? [part.text] : []))
		.join("\n\n")
}

/** @param {Message} message @returns {ToolResult} */
export function resultOf(message) {
	const output = message.role === "bashExecution" ? textOr(message.output) : ""
	return {
		callId: textOr(message.toolCallId),
		name: textOr(message.toolName),
		text: output || textOf(message),
		isError: message.isError === true || (typeof message.exitCode === "number" && message.exitCode !== 0),
	}
}

/** @param {Message} message @returns {Speaker} */
export function speakerOf(message) {
	const provenance = objectOr(message.provenance)
	if (provenance.kind === "inter_session") {
		return {who: "session", word: "Session", from: textOr(provenance.sourceSessionKey)}
	}
	if (message.role === "user") return {who: "user", word: "You"}
	if (message.role === "assistant" || isToolResult(message)) return {who: "assistant", word: "Agent"}
	if (message.role === "system") return {who: "system", word: "System"}
	return {who: "other", word: safeLine(textOr(message.role), 40) || "Unknown"}
}

/** @param {Message} message @param {string} [stamp] */
export function timeOf(message, stamp) {
	const told = stamp === undefined ? NaN : Date.parse(stamp)
	if (!Number.isNaN(told)) return told
	const own = message.timestamp
	return typeof own === "number" && Number.isFinite(own) && Math.abs(own) < 8.64e15 ? own : null
}

/** @param {unknown} value */
export function jsonOf(value) {
	try {
		return JSON.stringify(value, null, 2) ?? ""
	} catch {
		return ""
	}
}
