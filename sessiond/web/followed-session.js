/** @file Lets each message through once, and again when it has grown. As `sessiond/client/follow.py`. */

export class FollowedSession {
  /** @type {string} */
  cursor;
  #sessionId = "";
  #highestSeq = 0;
  #offset = 0;
  #lastSeq = 0;
  /** @type {string | null} */
  #messageId = null;

  /** @param {string} cursor */
  constructor(cursor) {
    this.cursor = cursor;
    const place = /^([0-9]+)-([0-9]+)-/.exec(cursor);
    this.#offset = place ? Number(place[1]) : -1;
    this.#highestSeq = place ? Number(place[2]) : 0;
  }

  /** @param {ArrivedMessage} event */
  take({ sessionId, messageId, seq, cursor }) {
    const offset = offsetOf(cursor);
    this.#sessionId ||= sessionId;
    const isKnown = sessionId === this.#sessionId && seq <= this.#highestSeq;
    // A line may change several messages, which then have one cursor.
    const isBeside = offset === this.#offset && offset >= 0 && ![null, messageId].includes(this.#messageId);
    // In an older copy of the file another message may have the number.
    const isOther = seq === this.#lastSeq && ![null, messageId].includes(this.#messageId);
    const hasGrown = isKnown && ((offset > this.#offset && !isOther) || isBeside);
    if (isKnown && !hasGrown) return null;
    this.#highestSeq = sessionId === this.#sessionId ? Math.max(seq, this.#highestSeq) : seq;
    this.#sessionId = sessionId;
    this.#offset = offset;
    this.#lastSeq = seq;
    this.#messageId = messageId;
    this.cursor = cursor;
    return hasGrown ? "grown" : "new";
  }

  /** @param {Resync} event */
  resync({ reason, cursor }) {
    if (reason !== "lagged") {
      this.#sessionId = "";
      this.#messageId = null;
      this.#highestSeq = 0;
      this.#offset = -1;
    }
    this.cursor = cursor;
  }
}

/** @param {string} cursor */
export function offsetOf(cursor) {
  const digits = /^([0-9]+)-/.exec(cursor);
  return digits ? Number(digits[1]) : -1;
}
