/** @file Numbers, times and sizes for people. Knows no DOM. */

const counts = new Intl.NumberFormat();
const short = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });
const money = new Intl.NumberFormat(undefined, {
  style: "currency",
  currency: "USD",
  currencyDisplay: "narrowSymbol",
  minimumFractionDigits: 2,
});
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const dayOfYear = new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric", month: "short" });
const dayOfAnyYear = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", year: "numeric" });
const whole = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** @param {number} count */
export const formatCount = (count) => counts.format(count);

/** @param {number} count */
export const formatTokens = (count) => short.format(count);

/** @param {number} usd */
export function formatCost(usd) {
  return usd > 0 && usd < 0.01 ? `under ${money.format(0.01)}` : money.format(usd);
}

/** @param {number} ms */
export function formatDuration(ms) {
  if (ms < 950) return `${Math.max(0, Math.round(ms / 10) * 10)} ms`;
  if (ms < 10 * SECOND) return `${(ms / SECOND).toFixed(1)} s`;
  if (ms < MINUTE) return `${Math.round(ms / SECOND)} s`;
  if (ms < HOUR) return twoUnits(Math.round(ms / SECOND), "min", "s");
  return twoUnits(Math.round(ms / MINUTE), "h", "min");
}

/** @param {number} small @param {string} largeUnit @param {string} smallUnit */
function twoUnits(small, largeUnit, smallUnit) {
  const rest = small % 60;
  return `${Math.floor(small / 60)} ${largeUnit}${rest ? ` ${rest} ${smallUnit}` : ""}`;
}

/** @param {number} at @param {number} now */
export function formatAge(at, now) {
  const past = now - at;
  if (past < MINUTE) return "now";
  if (past < HOUR) return `${Math.floor(past / MINUTE)} min`;
  if (past < DAY) return `${Math.floor(past / HOUR)} h`;
  if (past < 7 * DAY) return `${Math.floor(past / DAY)} d`;
  return formatDay(at, now);
}

/** @param {number} at @param {number} now */
export function formatPast(at, now) {
  const age = formatAge(at, now);
  return / (min|h|d)$/.test(age) ? `${age} ago` : age;
}

/** @param {number} at */
export const formatTime = (at) => clock.format(at);

/** @param {number} at @param {number} now */
export function formatDay(at, now) {
  const sameYear = new Date(at).getFullYear() === new Date(now).getFullYear();
  return (sameYear ? dayOfYear : dayOfAnyYear).format(at);
}

/** @param {number} at */
export const formatMoment = (at) => whole.format(at);

/** @param {number} bytes */
export function formatBytes(bytes) {
  if (bytes < 1000) return `${bytes} bytes`;
  if (bytes < 1e6) return `${(bytes / 1e3).toFixed(bytes < 1e4 ? 1 : 0)} kB`;
  return `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`;
}

/** @param {number} count @param {string} noun @param {string} [plural] */
export function formatPlural(count, noun, plural = `${noun}s`) {
  return count === 1 ? `1 ${noun}` : `${formatCount(count)} ${plural}`;
}

/** @param {string} path */
export function folderName(path) {
  const parts = path.split("/").filter(Boolean);
  return parts.at(-1) ?? "/";
}

/** @param {string} model */
export function modelName(model) {
  const name = model.split("/").at(-1) ?? model;
  return name.replace(/-(20\d{6}|latest)$/, "");
}

/** @param {number} one @param {number} other */
export function isAnotherDay(one, other) {
  return new Date(one).toDateString() !== new Date(other).toDateString();
}
