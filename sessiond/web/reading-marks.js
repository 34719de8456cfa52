/** @file What one has read and begun to write, kept in the browser. Knows no DOM. */

const MOST_SESSIONS = 500;

export class ReadingMarks {
  /** @param {Storage} lasting @param {Storage} ofTab drafts may hold secrets: they go with the tab */
  constructor(lasting, ofTab) {
    this.lasting = lasting;
    this.ofTab = ofTab;
    const kept = parsed(lasting.getItem("sessiond.read"));
    /** @type {Map<string, number>} */
    this.read = new Map(Object.entries(kept).filter((pair) => typeof pair[1] === "number"));
    // What is older than the first visit counts as read.
    this.since = Number(lasting.getItem("sessiond.since")) || Date.now();
    this.keep("sessiond.since", String(this.since));
  }

  /** @param {string} key @param {Row} row */
  isUnread(key, row) {
    return row.updatedAt > (this.read.get(key) ?? this.since);
  }

  /** @param {string} key @param {number} until */
  markRead(key, until) {
    if ((this.read.get(key) ?? 0) >= until) return;
    this.read.delete(key);
    this.read.set(key, until);
    for (const oldest of this.read.keys()) {
      if (this.read.size <= MOST_SESSIONS) break;
      this.read.delete(oldest);
    }
    this.keep("sessiond.read", JSON.stringify(Object.fromEntries(this.read)));
  }

  /** @param {string} key */
  draftOf(key) {
    return this.ofTab.getItem(`sessiond.draft ${key}`) ?? "";
  }

  /** @param {string} key @param {string} text */
  keepDraft(key, text) {
    if (text === "") this.ofTab.removeItem(`sessiond.draft ${key}`);
    else this.put(this.ofTab, `sessiond.draft ${key}`, text);
  }

  /** @param {string} name @param {string} otherwise */
  preference(name, otherwise) {
    return this.lasting.getItem(`sessiond.${name}`) ?? otherwise;
  }

  /** @param {string} name @param {string} value */
  prefer(name, value) {
    this.keep(`sessiond.${name}`, value);
  }

  /** @param {string} name @param {string} value */
  keep(name, value) {
    this.put(this.lasting, name, value);
  }

  /** @param {Storage} storage @param {string} name @param {string} value */
  put(storage, name, value) {
    try {
      storage.setItem(name, value);
    } catch {
      /* Full or forbidden: it is kept as long as the page is open. */
    }
  }
}

/** @param {string | null} text @returns {Record<string, any>} */
function parsed(text) {
  try {
    const value = JSON.parse(text ?? "{}");
    return value !== null && typeof value === "object" ? value : {};
  } catch {
    return {};
  }
}
