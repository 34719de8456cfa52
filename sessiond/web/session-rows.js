/** @file The rows of all sessions by canonical key. Knows no DOM. */

import { agentOf } from "./session-state.js";

export class SessionRows {
  constructor() {
    /** @type {Map<string, Row>} */
    this.byKey = new Map();
  }

  /** `main` stands under the key of its agent. @param {Row} row */
  keyOf(row) {
    if (row.source !== "sessiond" || row.key.startsWith("agent:")) return row.key;
    const agent = agentOf(row);
    return agent ? `agent:${agent}:${row.key}` : row.key;
  }

  /** @param {Row} row @param {string} [key] */
  put(row, key = this.keyOf(row)) {
    const known = this.byKey.get(key);
    // Live rows come without the first words that a list shows.
    const derivedTitle = row.derivedTitle ?? known?.derivedTitle;
    this.byKey.set(key, derivedTitle === undefined ? row : { ...row, derivedTitle });
  }

  /** @param {Row[]} rows */
  replace(rows) {
    this.byKey.clear();
    for (const row of rows) this.put(row);
  }

  /** @param {string} key */
  remove(key) {
    this.byKey.delete(key);
  }

  /** @param {string} key */
  get(key) {
    const found = this.byKey.get(key);
    if (found) return found;
    for (const row of this.byKey.values()) if (row.key === key || row.sessionId === key) return row;
    return undefined;
  }

  /** @param {string} key */
  childrenOf(key) {
    const children = [...this.byKey.values()].filter((row) => row.spawnedBy === key);
    return children.sort((one, other) => one.createdAt - other.createdAt);
  }

  get size() {
    return this.byKey.size;
  }
}
