/** @file All sessions, kept in step with the daemon. Knows no DOM. */

import { SessionRows } from "./session-rows.js";

// What is asked for first is on the screen first.
const FIRST_PAGE = 60;
const PAGE = 200;
const LOADED_AT_ONCE = 1000;

export class SessionList extends EventTarget {
  /** @param {Client} client @param {Schedule} [schedule] */
  constructor(client, schedule = queueMicrotask) {
    super();
    this.client = client;
    this.rows = new SessionRows();
    /** @type {"loading" | "ready"} */
    this.state = "loading";
    /** @type {string | null} */
    this.olderCursor = null;
    /** @type {string} */
    this.visibility = "all";
    /** @type {unknown} */
    this.problem = null;
    this.freshAt = 0;
    // Not called as a method: the browser's own functions refuse that.
    this.schedule = (/** @type {() => void} */ work) => schedule(work);
    this.isTelling = false;
    this.stop = () => {};
  }

  start() {
    this.stop = this.client.followSessions({
      onChanged: (change) => this.apply(change),
      onFresh: () => this.load(),
    });
  }

  /** Rows that are shown stay until the new ones are there. */
  async load() {
    /** @type {Row[]} */
    const rows = [];
    const isFirst = this.state === "loading";
    try {
      /** @type {string | null} */
      let cursor = null;
      do {
        const page = await this.page(cursor, rows.length === 0 ? FIRST_PAGE : PAGE);
        rows.push(...page.rows);
        cursor = page.next;
        this.olderCursor = cursor;
        if (isFirst) {
          for (const row of page.rows) this.rows.put(row);
          this.state = "ready";
          this.tell();
        }
      } while (cursor !== null && rows.length < LOADED_AT_ONCE);
      if (!isFirst) this.rows.replace(rows);
      this.problem = null;
    } catch (problem) {
      this.problem = problem;
    }
    this.freshAt = Date.now();
    this.tell();
  }

  async loadOlder() {
    if (this.olderCursor === null) return;
    const page = await this.page(this.olderCursor, PAGE);
    for (const row of page.rows) this.rows.put(row);
    this.olderCursor = page.next;
    this.tell();
  }

  /** @param {string} search @param {AbortSignal} signal */
  async find(search, signal) {
    if (this.olderCursor === null) return;
    const found = await this.client.call("sessions.list", { search, limit: 100 }, { signal });
    for (const row of found.sessions) this.rows.put(row);
    this.tell();
  }

  /** @param {string} key */
  async fetchRow(key) {
    const found = await this.client.call("sessions.list", { search: key, limit: 20, includeArchived: true });
    for (const row of found.sessions) if (!row.archived) this.rows.put(row);
    this.tell();
    return (
      this.rows.get(key) ?? found.sessions.find((/** @type {Row} */ row) => row.key === key || row.sessionId === key)
    );
  }

  /** @param {SessionChange} change */
  apply({ sessionKey, phase, row }) {
    if (phase === "delete") this.rows.remove(sessionKey);
    else if (row && !row.archived) this.rows.put(row, sessionKey);
    this.freshAt = Date.now();
    this.tell();
  }

  /** @param {string | null} cursor @param {number} limit @returns {Promise<ListPage>} */
  async page(cursor, limit) {
    const found = await this.client.call("sessions.list", cursor === null ? { limit } : { limit, cursor });
    this.visibility = found.visibility;
    return { rows: found.sessions, next: found.hasMore ? (found.nextCursor ?? null) : null };
  }

  tell() {
    if (this.isTelling) return;
    this.isTelling = true;
    this.schedule(() => {
      this.isTelling = false;
      this.dispatchEvent(new Event("change"));
    });
  }
}
