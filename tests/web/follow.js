/** Follows one session from its beginning and prints its messages, a line each: for a test that kills the daemon. */
import {Client} from "../../sessiond/web/client.js"
import {followSession} from "../../sessiond/web/followed-session.js"

const [base, code, key, count] = process.argv.slice(2)
const client = new Client({
	base,
	storage: {getItem: () => kept, setItem: (_, value) => (kept = value), removeItem: () => {}},
})
/** @type {string | null} */
let kept = null
await client.open(code)
const page = await client.call("chat.history", {sessionKey: key, limit: 1})
let left = Number(count)
/** @param {unknown} value */
const say = (value) => process.stdout.write(`${JSON.stringify(value)}\n`)
client.addEventListener("state", () => say({state: client.state}))
client.followSessions({onChanged: () => {}, onFresh: () => say({fresh: true})})
followSession(client, key, page.cursor, {
	onMessage: ({seq, messageId, message, grown}) => {
		say({seq, messageId, text: message.content, grown})
		left -= 1
		// Written by then: what a full pipe does not take waits here.
		if (left === 0) process.stdout.write("", () => process.exit())
	},
	onResync: (event) => say({resync: event.reason}),
	onError: (error) => say({error: error.message}),
})
