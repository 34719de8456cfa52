/** @file The lines of the table and the chart, from what `sessions.usage` answers. Knows no DOM. */

const DAY_MS = 24 * 60 * 60 * 1000;

/** Where the sums stand, and what names them. @type {Record<UsageBy, [string, string]>} */
const LISTS = {
  day: ["byDay", "day"],
  model: ["byModel", "model"],
  project: ["byProject", "cwd"],
  agent: ["byAgent", "agentId"],
  program: ["bySource", "source"],
  session: ["bySession", "key"],
};

/**
 * The largest first; days the newest first.
 *
 * @param {Record<string, any>} usage @param {UsageBy} by
 * @returns {{name: string, sum: TokenSum}[]}
 */
export function usageLines(usage, by) {
  const [list, field] = LISTS[by];
  const lines = (usage[list] ?? []).map((/** @type {any} */ sum) => ({ name: sum[field] || "not known", sum }));
  return by === "day" ? lines.reverse() : lines;
}

/**
 * The last so many days with what each used, also those with nothing.
 *
 * @param {any[]} byDay @param {number} days @param {number} now
 */
export function lastDays(byDay, days, now) {
  const tokens = new Map(byDay.map(({ day, totalTokens }) => [day, totalTokens]));
  return Array.from({ length: days }, (_, at) => {
    const day = new Date(now - (days - 1 - at) * DAY_MS).toISOString().slice(0, 10);
    return { day, tokens: Number(tokens.get(day) ?? 0) };
  });
}
