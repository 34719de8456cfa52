const SECOND = 1000
const MINUTE = 60 * SECOND
const HOUR = 60 * MINUTE
const DAY = 24 * HOUR

/** Making one takes longer than a row. @param {() => {format: (value: number) => string}} make */
function lazily(make) {
	/** @type {ReturnType<typeof make> | undefined} */
	let made
	return (/** @type {number} */ value) => {
		made ??= make()
		return made.format(value)
	}
}

/** @param {Intl.NumberFormatOptions} [how] */
const numbers = (how) => lazily(() => new Intl.NumberFormat(undefined, how))
/** @param {Intl.DateTimeFormatOptions} how */
const dates = (how) => lazily(() => new Intl.DateTimeFormat(undefined, how))

export const formatCount = numbers()
export const formatTokens = numbers({notation: "compact", maximumFractionDigits: 1})
const formatUsd = numbers({
	style: "currency",
	currency: "USD",
	currencyDisplay: "narrowSymbol",
	minimumFractionDigits: 2,
})
export const formatTime = dates({hour: "2-digit", minute: "2-digit"})
export const formatMoment = dates({dateStyle: "medium", timeStyle: "medium"})
const formatDayOfYear = dates({weekday: "short", day: "numeric", month: "short"})
const formatDayOfAnyYear = dates({day: "numeric", month: "short", year: "numeric"})

/** @param {number} usd */
export function formatCost(usd) {
	return usd > 0 && usd < 0.01 ? `under ${formatUsd(0.01)}` : formatUsd(usd)
}

/** @param {number} ms */
export function formatDuration(ms) {
	if (ms < 950) return `${Math.max(0, Math.round(ms / 10) * 10)} ms`
	if (ms < 10 * SECOND) return `${(ms / SECOND).toFixed(1)} s`
	if (ms < MINUTE) return `${Math.round(ms / SECOND)} s`
	if (ms < HOUR) return twoUnits(Math.round(ms / SECOND), "min", "s")
	return twoUnits(Math.round(ms / MINUTE), "h", "min")
}

/** @param {number} small @param {string} largeUnit @param {string} smallUnit */
function twoUnits(small, largeUnit, smallUnit) {
	const rest = small % 60
	return `${Math.floor(small / 60)} ${largeUnit}${rest ? ` ${rest} ${smallUnit}` : ""}`
}

/** @param {number} at @param {number} now */
export function formatAge(at, now) {
	const past = now - at
	if (past < MINUTE) return "now"
	if (past < HOUR) return `${Math.floor(past / MINUTE)} min`
	if (past < DAY) return `${Math.floor(past / HOUR)} h`
	if (past < 7 * DAY) return `${Math.floor(past / DAY)} d`
	return formatDay(at, now)
}

/** @param {number} at @param {number} now */
export function formatPast(at, now) {
	const age = formatAge(at, now)
	return / (min|h|d)$/.test(age) ? `${age} ago` : age
}

/** @param {number} at @param {number} now */
export function formatDay(at, now) {
	const sameYear = new Date(at).getFullYear() === new Date(now).getFullYear()
	return (sameYear ? formatDayOfYear : formatDayOfAnyYear)(at)
}

/** @param {number} bytes */
export function formatBytes(bytes) {
	if (bytes < 1000) return `${bytes} bytes`
	if (bytes < 1e6) return `${(bytes / 1e3).toFixed(bytes < 1e4 ? 1 : 0)} kB`
	return `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`
}

/** @param {number} count @param {string} noun */
export function formatPlural(count, noun) {
	return count === 1 ? `1 ${noun}` : `${formatCount(count)} ${noun}s`
}

/** @param {string} path */
export function folderName(path) {
	return path.split("/").filter(Boolean).at(-1) ?? "/"
}

/** @param {string} model */
export function modelName(model) {
	return model.replace(/.*\/|-(20\d{6}|latest)$/g, "")
}

/** @param {number} one @param {number} other */
export function isAnotherDay(one, other) {
	return new Date(one).toDateString() !== new Date(other).toDateString()
}
