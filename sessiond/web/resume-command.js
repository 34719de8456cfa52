/** @type {Record<string, (id: string) => string[]>} */
const COMMANDS = {
	claude: (id) => ["claude", "--resume", id],
	codex: (id) => ["codex", "resume", id],
	gemini: (id) => ["gemini", "--resume", id],
	opencode: (id) => ["opencode", "--session", id],
	pi: (id) => ["pi", "--session", id],
}

/** @param {Row} row */
export function resumeCommand(row) {
	const command = row.nativeId === undefined ? undefined : COMMANDS[row.source]?.(row.nativeId)
	if (command === undefined) return row.source === "sessiond" ? `sessiond send ${quoted(row.key)} "..."` : null
	// Pasted, they would end the paste or the line.
	if (/\p{Cc}/u.test(`${row.nativeId}${row.cwd}`)) return null
	const there = row.cwd ? `cd ${quoted(row.cwd)} && ` : ""
	return there + command.map(quoted).join(" ")
}

/** @param {string} word */
export function quoted(word) {
	return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`
}
