/** @file The rows of all sessions as the daemon last told them, by canonical key. Knows no DOM and no network. */

import { agentOf } from "./session-state.js";

/** Rows by key. Keys are canonical: `main` stands under the key of its agent. */
export class SessionRows {
  constructor() {
    /** @type {Map<string, Row>} */
    this.byKey = new Map();
  }

  /** The canonical key of a row: parents and events name it so. @param {Row} row */
  keyOf(row) {
    if (row.source !== "sessiond" || row.key.startsWith("agent:")) return row.key;
    const agent = agentOf(row);
    return agent ? `agent:${agent}:${row.key}` : row.key;
  }

  /** Takes a row; an older one of the same session does not replace a newer. @param {Row} row @param {string} [key] */
  put(row, key = this.keyOf(row)) {
    const known = this.byKey.get(key);
    // Live rows come without the first words that a list shows.
    const derivedTitle = row.derivedTitle ?? known?.derivedTitle;
    this.byKey.set(key, derivedTitle === undefined ? row : { ...row, derivedTitle });
  }

  /** Puts all rows of a list in place of what was known. @param {Row[]} rows */
  replace(rows) {
    this.byKey.clear();
    for (const row of rows) this.put(row);
  }

  /** @param {string} key */
  remove(key) {
    this.byKey.delete(key);
  }

  /** The row of a canonical key, or of one as a person writes it. @param {string} key @returns {Row | undefined} */
  get(key) {
    const found = this.byKey.get(key);
    if (found) return found;
    for (const row of this.byKey.values()) if (row.key === key || row.sessionId === key) return row;
    return undefined;
  }

  /** The rows of the children of a session, oldest first. @param {string} key */
  childrenOf(key) {
    const children = [...this.byKey.values()].filter((row) => row.spawnedBy === key);
    return children.sort((one, other) => one.createdAt - other.createdAt);
  }

  get size() {
    return this.byKey.size;
  }
}
