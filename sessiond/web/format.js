/** Numbers, times and sizes for people. */

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** One that is made when it is needed: that takes longer than a row. @param {() => {format: (value: number) => string}} make */
function lazily(make) {
	/** @type {ReturnType<typeof make> | undefined} */
	let made;
	return (/** @type {number} */ value) => {
		made ??= make();
		return made.format(value);
	};
}

export const formatCount = lazily(() => new Intl.NumberFormat());
export const formatTokens = lazily(
	() => new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 }),
);
const formatUsd = lazily(
	() =>
		new Intl.NumberFormat(undefined, {
			style: "currency",
			currency: "USD",
			currencyDisplay: "narrowSymbol",
			minimumFractionDigits: 2,
		}),
);
export const formatTime = lazily(() => new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" }));
export const formatMoment = lazily(
	() => new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" }),
);
const formatDayOfYear = lazily(
	() => new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric", month: "short" }),
);
const formatDayOfAnyYear = lazily(
	() => new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", year: "numeric" }),
);

/** @param {number} usd */
export function formatCost(usd) {
	return usd > 0 && usd < 0.01 ? `under ${formatUsd(0.01)}` : formatUsd(usd);
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

/** @param {number} at @param {number} now */
export function formatDay(at, now) {
	const sameYear = new Date(at).getFullYear() === new Date(now).getFullYear();
	return (sameYear ? formatDayOfYear : formatDayOfAnyYear)(at);
}

/** @param {number} bytes */
export function formatBytes(bytes) {
	if (bytes < 1000) return `${bytes} bytes`;
	if (bytes < 1e6) return `${(bytes / 1e3).toFixed(bytes < 1e4 ? 1 : 0)} kB`;
	return `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`;
}

/** @param {number} count @param {string} noun */
export function formatPlural(count, noun) {
	return count === 1 ? `1 ${noun}` : `${formatCount(count)} ${noun}s`;
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
