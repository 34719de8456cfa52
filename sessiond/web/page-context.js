/** @file What every part of the page may use. */

import { safeLine } from "./plain-text.js";
import { nameOf } from "./session-state.js";

/** Tells `open`: a session at another place than its address says. */
export class PageContext extends EventTarget {
  /** @type {string | undefined} */
  #cursor;

  /** @param {Client} client @param {SessionList} list @param {ReadingMarks} marks */
  constructor(client, list, marks) {
    super();
    this.client = client;
    this.list = list;
    this.marks = marks;
  }

  /** @param {Scope} scope */
  may(scope) {
    return this.client.may(scope);
  }

  /** @param {string} key @param {string} [cursor] */
  open(key, cursor) {
    this.#cursor = cursor;
    if (!this.list.rows.get(key)) this.list.fetchRow(key).catch(() => {});
    const before = location.hash;
    this.go(`session/${encodeURIComponent(key)}`);
    if (location.hash === before) this.dispatchEvent(new Event("open"));
  }

  /** @param {string} address */
  go(address) {
    location.hash = `#/${address}`;
  }

  takeAddress() {
    const [, view = "", rest = ""] = /^#\/([a-z]*)\/?(.*)$/.exec(location.hash) ?? [];
    const cursor = this.#cursor;
    this.#cursor = undefined;
    return { view, key: view === "session" ? decoded(rest) : "", cursor };
  }

  /** @param {string} key */
  nameOf(key) {
    const row = this.list.rows.get(key);
    return row ? safeLine(nameOf(row)) : safeLine(key);
  }
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
