import {jsonOf} from "./message-parts.js"
import {objectOr, safeLine, textOr} from "./plain-text.js"

const PATHS = ["file_path", "filePath", "path", "absolute_path", "notebook_path"]
// The one that says most comes first.
const TELLING = [
	...["command", "cmd", ...PATHS, "pattern", "query", "url", "description", "task", "prompt", "message"],
	...["sessionKey", "label", "text", "input", "name"],
]
const BEFORE = ["old_string", "oldString", "oldText", "old_str"]
const AFTER = ["new_string", "newString", "newText", "new_str"]
// More are shown as they stand.
const MOST_CHANGES = 100
const MOST_CHARS = 512 * 1024
const PATCHES = ["patch", "diff", "input", "patchText"]

/** `mcp__github__list_issues` is `github.list_issues`. @param {string} name */
export const toolName = (name) => safeLine(name.replace(/^mcp__(.+?)__/, "$1."), 60)

/** @param {unknown} args @param {number} [most] */
export function summarizeCall(args, most = 160) {
	const given = parsed(args)
	if (typeof given === "string") return safeLine(given, most)
	for (const name of TELLING) {
		const value = given[name]
		if (typeof value === "string" && value.trim()) return safeLine(value, most)
		if (Array.isArray(value) && value.every((word) => typeof word === "string") && value.length) {
			return safeLine(shellWords(value), most)
		}
	}
	return Object.keys(given).length ? safeLine(jsonOf(given), most) : ""
}

/** @param {unknown} args */
export function changesOf(args) {
	const changes = allChanges(parsed(args))
	const chars = (/** @type {Change} */ one) => ("patch" in one ? one.patch : one.before + one.after).length
	return changes.length > MOST_CHANGES || changes.some((one) => chars(one) > MOST_CHARS) ? [] : changes
}

/** @param {ReturnType<typeof parsed>} given @returns {Change[]} */
function allChanges(given) {
	if (typeof given === "string") return isPatch(given) ? [{path: "", patch: given}] : []
	const path = firstText(given, PATHS) ?? ""
	const edits = Array.isArray(given.edits) ? given.edits.map(objectOr) : [given]
	const changes = edits.flatMap((edit) => {
		const before = firstText(edit, BEFORE)
		const after = firstText(edit, AFTER)
		return before !== undefined || after !== undefined ? [{path, before: before ?? "", after: after ?? ""}] : []
	})
	if (changes.length > 0) return changes
	const patch = firstText(given, PATCHES)
	if (patch !== undefined && isPatch(patch)) return [{path, patch}]
	const content = firstText(given, ["content", "file_text"])
	return path && content !== undefined ? [{path, before: "", after: content}] : []
}

/** @param {unknown} args */
export function detailsOf(args) {
	const given = parsed(args)
	if (typeof given === "string") return given
	const values = Object.values(given)
	const command = textOr(given.command) || textOr(given.cmd)
	if (command || values.length === 0) return command
	return values.length === 1 && typeof values[0] === "string" ? values[0] : jsonOf(given)
}

/** @param {unknown} args @returns {string | Record<string, any>} */
function parsed(args) {
	if (typeof args !== "string") return objectOr(args)
	if (!args.startsWith("{")) return args
	try {
		return objectOr(JSON.parse(args))
	} catch {
		return args
	}
}

/** @param {Record<string, any>} from @param {string[]} names @returns {string | undefined} */
function firstText(from, names) {
	const name = names.find((one) => typeof from[one] === "string")
	return name === undefined ? undefined : from[name]
}

/** @param {string} text */
const isPatch = (text) => /^(\*\*\* Begin Patch|diff --git |--- \S|@@ )/m.test(text.slice(0, 4096))

/** How Codex runs commands. @param {string[]} words */
function shellWords(words) {
	const isShell = words.length === 3 && /(^|\/)(ba|z|da)?sh$/.test(words[0] ?? "") && /^-l?c$/.test(words[1] ?? "")
	return isShell ? words[2] : words.join(" ")
}
