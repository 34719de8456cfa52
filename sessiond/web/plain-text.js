// They make `exe.gpj` read as something else. Marks (U+200E, U+200F) do no harm.
const TURNING = /[\u202a-\u202e\u2066-\u2069]/g
// Controls but tab and newline, and what shows nothing; joiners are left.
const INVISIBLE = /(?![\t\n])\p{Cc}|[\u00ad\u2060-\u2064\ufeff\ufff9-\ufffb]/gu
// An escape to its last character.
const ESCAPE_SEQUENCE = /(?![\t\n\r])\p{Cc}(?:\[[0-9;?]*[ -/]*[@-~]|\][^\p{Cc}]*\p{Cc}?)/gu

/** @param {unknown} text */
export function safeText(text) {
	const given = typeof text === "string" ? text : text === undefined || text === null ? "" : String(text)
	return given
		.replace(ESCAPE_SEQUENCE, "")
		.replace(/\r\n?/g, "\n")
		.replace(TURNING, codePoint)
		.replace(INVISIBLE, (char) => (char === "\ufeff" || char === "\u00ad" ? "" : codePoint(char)))
}

/** @param {unknown} text @param {number} [most] */
export function safeLine(text, most = 200) {
	const given = typeof text === "string" ? text.slice(0, most * 4) : text
	const line = safeText(given).replace(/\s+/g, " ").trim()
	return line.length > most ? `${cut(line, most - 1)}…` : line
}

/** No emoji is torn apart. @param {string} text @param {number} most */
export function cut(text, most) {
	const last = text.charCodeAt(most - 1)
	return text.slice(0, last >= 0xd800 && last <= 0xdbff ? most - 1 : most)
}

/** @param {string} address */
export function safeAddress(address) {
	try {
		const url = new URL(address)
		const isWeb = url.protocol === "http:" || url.protocol === "https:"
		return isWeb && url.hostname && !url.username && !url.password ? url.href : null
	} catch {
		return null
	}
}

/** @param {unknown} value */
export const textOr = (value, otherwise = "") => (typeof value === "string" ? value : otherwise)

/** @param {unknown} value @returns {Record<string, any>} */
export function objectOr(value) {
	return value !== null && typeof value === "object" && !Array.isArray(value) ? /** @type {any} */ (value) : {}
}

/** @param {string} char */
function codePoint(char) {
	return `‹U+${(char.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}›`
}
