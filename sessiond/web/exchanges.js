import {partsOf, speakerOf} from "./message-parts.js"
import {objectOr} from "./plain-text.js"

const LOOKED_AT = 200
const MOST_BYTES = 256 * 1024
const MOST_NEIGHBOURS = 7

/** @param {Client} client @param {string} key @param {SessionRows} rows @param {AbortSignal} signal */
export async function fetchExchanges(client, key, rows, signal) {
	const found = new Exchanges()
	const own = await messagesOf(client, key, signal)
	found.addSpawns(key, rows)
	found.addMessages(key, own)
	for (const to of targetsOf(own, rows)) found.pair(key, to)
	const neighbours = found.keys.filter((one) => one !== key).slice(0, MOST_NEIGHBOURS)
	const theirs = await Promise.all(neighbours.map((one) => messagesOf(client, one, signal).catch(() => [])))
	for (const [at, one] of neighbours.entries()) found.addMessages(one, theirs[at] ?? [])
	const keys = [key, ...neighbours]
	const exchanges = found.all.filter(
		({from, to, messages, isSpawn}) => (messages > 0 || isSpawn) && keys.includes(from) && keys.includes(to),
	)
	return {keys: [...new Set([key, ...exchanges.flatMap(({from, to}) => [from, to])])], exchanges}
}

export class Exchanges {
	constructor() {
		/** @type {Map<string, Exchange>} */
		this.byPair = new Map()
	}

	/** @param {string} key @param {SessionRows} rows */
	addSpawns(key, rows) {
		const parent = rows.get(key)?.spawnedBy
		if (parent !== undefined) this.pair(parent, key).isSpawn = true
		for (const child of rows.childrenOf(key)) this.pair(key, rows.keyOf(child)).isSpawn = true
	}

	/** @param {string} to @param {Message[]} messages */
	addMessages(to, messages) {
		for (const message of messages) {
			const {from} = speakerOf(message)
			if (from && from !== to) this.pair(from, to).messages += 1
		}
	}

	/** @param {string} from @param {string} to */
	pair(from, to) {
		const name = `${from}\n${to}`
		const exchange = this.byPair.get(name) ?? {from, to, messages: 0, isSpawn: false}
		this.byPair.set(name, exchange)
		return exchange
	}

	get all() {
		return [...this.byPair.values()]
	}

	get keys() {
		return [...new Set(this.all.flatMap(({from, to}) => [from, to]))]
	}
}

/** @param {Message[]} messages @param {SessionRows} rows */
function targetsOf(messages, rows) {
	const calls = messages
		.flatMap(partsOf)
		.filter((part) => part.kind === "toolCall" && part.name.endsWith("sessions_send"))
	const named = calls.map((call) => objectOr(/** @type {{args?: unknown}} */ (call).args))
	const labelled = (/** @type {unknown} */ label) =>
		[...rows.byKey.values()].find((row) => label !== undefined && row.label === label)
	const found = named.map(({sessionKey, label}) =>
		typeof sessionKey === "string" ? rows.get(sessionKey) : labelled(label),
	)
	return new Set(found.flatMap((row) => (row ? [rows.keyOf(row)] : [])))
}

/** @param {Client} client @param {string} sessionKey @param {AbortSignal} signal */
async function messagesOf(client, sessionKey, signal) {
	const page = await client.call("sessions_history", {sessionKey, limit: LOOKED_AT, maxBytes: MOST_BYTES}, {signal})
	return /** @type {Message[]} */ (page.messages)
}
