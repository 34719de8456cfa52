/** @file What every part of the page may use: the client, the sessions, the way from one view to another. Knows no DOM. */

import { safeLine } from "./plain-text.js";
import { nameOf } from "./session-state.js";

/** @typedef {"list" | "read" | "send" | "spawn" | "answer" | "admin"} Scope */

export class PageContext {
  /**
   * @param {Client} client @param {SessionList} list @param {ReadingMarks} marks
   * @param {{open: (key: string, cursor?: string) => void, spawn: (files: File[]) => void}} ways
   */
  constructor(client, list, marks, { open, spawn }) {
    this.client = client;
    this.list = list;
    this.marks = marks;
    this.open = open;
    this.spawn = spawn;
  }

  /** @param {Scope} scope */
  may(scope) {
    return this.client.may(scope);
  }

  /** What people call a session. @param {string} key */
  nameOf(key) {
    const row = this.list.rows.get(key);
    return row ? safeLine(nameOf(row)) : safeLine(key);
  }
}
