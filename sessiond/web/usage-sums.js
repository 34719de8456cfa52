/** @file Tokens and cost by day, model, project or session, from what `sessions.usage` answers. Knows no DOM. */

/** @typedef {{name: string, key?: string, sum: TokenSum}} Line */

const DAY_MS = 24 * 60 * 60 * 1000;
const FIELDS = /** @type {const} */ (["inputTokens", "outputTokens", "cacheRead", "cacheWrite", "totalTokens"]);

/**
 * The lines of a table, the largest first; days the newest first.
 *
 * @param {Record<string, any>} usage @param {UsageBy} by
 * @param {{nameOf: (key: string) => string, projectOf: (key: string) => string}} names
 * @returns {Line[]}
 */
export function usageLines(usage, by, { nameOf, projectOf }) {
  const sessions = () => /** @type {any[]} */ (usage.bySession ?? []);
  if (by === "day")
    return [...(usage.byDay ?? [])].map((/** @type {any} */ one) => ({ name: one.day, sum: one })).reverse();
  if (by === "model")
    return bySize(
      (usage.byModel ?? []).map((/** @type {any} */ one) => ({ name: one.model || "not known", sum: one })),
    );
  if (by === "session") return bySize(sessions().map((one) => ({ name: nameOf(one.key), key: one.key, sum: one })));
  /** @type {Map<string, TokenSum>} */
  const projects = new Map();
  for (const one of usage.byProject ?? sessions()) {
    const name = one.project ?? projectOf(one.key);
    projects.set(name, added(projects.get(name), one));
  }
  return bySize([...projects].map(([name, sum]) => ({ name, sum })));
}

/** The last so many days with what each used, also those with nothing. @param {{day: string, totalTokens: number}[]} byDay @param {number} days @param {number} now */
export function lastDays(byDay, days, now) {
  const known = new Map(byDay.map((one) => [one.day, one]));
  return Array.from({ length: days }, (_, at) => {
    const day = new Date(now - (days - 1 - at) * DAY_MS).toISOString().slice(0, 10);
    return { day, sum: /** @type {TokenSum | undefined} */ (/** @type {unknown} */ (known.get(day))) };
  });
}

/** @param {TokenSum | undefined} one @param {TokenSum} other @returns {TokenSum} */
function added(one, other) {
  const sum = { ...(one ?? { inputTokens: 0, outputTokens: 0, cacheRead: 0, cacheWrite: 0, totalTokens: 0 }) };
  for (const field of FIELDS) sum[field] += other[field] ?? 0;
  if (other.costUsd !== undefined) sum.costUsd = (sum.costUsd ?? 0) + other.costUsd;
  return sum;
}

/** @param {Line[]} lines */
const bySize = (lines) => lines.sort((one, other) => other.sum.totalTokens - one.sum.totalTokens);
