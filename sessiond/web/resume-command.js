/** @type {Record<string, string>} */
const WORDS = {claude: "--resume", codex: "resume", gemini: "--resume", opencode: "--session", pi: "--session"}

/** @param {Row} row */
export function resumeCommand(row) {
	const {source, machine, nativeId} = row
	// Pasted, they would end the paste or the line.
	if (/\p{Cc}/u.test(`${row.key}${nativeId}${row.cwd}`)) return null
	if (machine || source === "sessiond") return `sessiond send ${quoted(row.key)} "..."`
	if (nativeId === undefined || !Object.hasOwn(WORDS, source)) return null
	const there = row.cwd ? `cd ${quoted(row.cwd)} && ` : ""
	return `${there}${source} ${WORDS[source]} ${quoted(nativeId)}`
}

/** @param {string} word */
export function quoted(word) {
	return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`
}
