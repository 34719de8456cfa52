const DAY_MS = 24 * 60 * 60 * 1000

/** @type {Record<UsageBy, [string, string]>} */
const LISTS = {
	day: ["byDay", "day"],
	model: ["byModel", "model"],
	project: ["byProject", "cwd"],
	agent: ["byAgent", "agentId"],
	program: ["bySource", "source"],
	session: ["bySession", "key"],
}

export const VIEWS = Object.keys(LISTS)

/** @param {Record<string, any>} usage @param {UsageBy} by @returns {{name: string, sum: TokenSum}[]} */
export function usageLines(usage, by) {
	const [list, field] = LISTS[by]
	const lines = (usage[list] ?? []).map((/** @type {any} */ sum) => ({name: sum[field] || "not known", sum}))
	return by === "day" ? lines.reverse() : lines
}

/** @param {any[]} byDay @param {number} days @param {number} now */
export function lastDays(byDay, days, now) {
	const tokens = new Map(byDay.map(({day, totalTokens}) => [day, totalTokens]))
	return Array.from({length: days}, (_, at) => {
		const day = new Date(now - (days - 1 - at) * DAY_MS).toISOString().slice(0, 10)
		return {day, tokens: Number(tokens.get(day) ?? 0)}
	})
}
