const MOST_SESSIONS = 500

export class ReadingMarks {
	/** @param {Storage} lasting @param {Storage} ofTab drafts may hold secrets: they go with the tab */
	constructor(lasting, ofTab) {
		this.lasting = lasting
		this.ofTab = ofTab
		/** @type {Map<string, number>} */
		this.read = new Map(parsed(this.preference("read")).filter((pair) => typeof pair[1] === "number"))
		// What is older than the first visit counts as read.
		this.since = Number(this.preference("since")) || Date.now()
		this.prefer("since", String(this.since))
	}

	/** @param {string} key @param {Row} row */
	isUnread(key, row) {
		return row.updatedAt > (this.read.get(key) ?? this.since)
	}

	/** @param {string} key @param {number} until */
	markRead(key, until) {
		if ((this.read.get(key) ?? 0) >= until) return
		this.read.delete(key)
		this.read.set(key, until)
		for (const oldest of this.read.keys()) {
			if (this.read.size <= MOST_SESSIONS) break
			this.read.delete(oldest)
		}
		this.prefer("read", JSON.stringify(Object.fromEntries(this.read)))
	}

	/** @param {string} key */
	draftOf(key) {
		return this.ofTab.getItem(`sessiond.draft ${key}`) ?? ""
	}

	/** @param {string} key @param {string} text */
	keepDraft(key, text) {
		if (text === "") this.ofTab.removeItem(`sessiond.draft ${key}`)
		else put(this.ofTab, `sessiond.draft ${key}`, text)
	}

	/** @param {string} name */
	preference(name) {
		return this.lasting.getItem(`sessiond.${name}`)
	}

	/** @param {string} name @param {string} value */
	prefer(name, value) {
		put(this.lasting, `sessiond.${name}`, value)
	}
}

/** @param {Storage} storage @param {string} name @param {string} value */
function put(storage, name, value) {
	try {
		storage.setItem(name, value)
	} catch {
		/* Full or forbidden. */
	}
}

/** @param {string | null} text @returns {[string, any][]} */
function parsed(text) {
	try {
		return Object.entries(JSON.parse(text ?? "{}"))
	} catch {
		return []
	}
}
