/** Signs in and asks for the first rows while the rest is on its way. */

import {Client} from "./client.js"

const FIRST_ROWS = 30

export const client = new Client()
export const signedIn = client.open(takeCode())
/** @type {Promise<ListAnswer>} */
export const firstRows = signedIn.then(() => client.call("sessions.list", {limit: FIRST_ROWS}))
firstRows.catch(() => {})

/** The one-time code, cleared before anything else happens. */
function takeCode() {
	const fragment = location.hash.slice(1)
	if (fragment === "" || fragment.startsWith("/")) return undefined
	history.replaceState(null, "", location.pathname)
	return fragment
}
