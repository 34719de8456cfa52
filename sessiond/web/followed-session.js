/**
 * @file Which messages of a session a follower has had, and from where it resumes: each is let through once, however often
 * the connection is lost, and again when it has grown. As `sessiond/client/follow.py`.
 */

export class FollowedSession {
  /** The place up to which everything was let through. @type {string} */
  cursor;
  #sessionId = "";
  #highestSeq = 0;
  #offset = 0;
  #lastSeq = 0;
  /** @type {string | null} */
  #messageId = null;

  /** @param {string} cursor the place behind what the follower has already */
  constructor(cursor) {
    this.cursor = cursor;
    const place = /^([0-9]+)-([0-9]+)-/.exec(cursor);
    this.#offset = place ? Number(place[1]) : -1;
    this.#highestSeq = place ? Number(place[2]) : 0;
  }

  /**
   * Whether the follower gets this message; null: it had it.
   * @param {ArrivedMessage} event
   * @returns {"new" | "grown" | null}
   */
  take({ sessionId, messageId, seq, cursor }) {
    const offset = offsetOf(cursor);
    this.#sessionId ||= sessionId; // that of the first cursor
    const isKnown = sessionId === this.#sessionId && seq <= this.#highestSeq;
    // A line may change several messages, which then have the same cursor.
    const isBeside = offset === this.#offset && offset >= 0 && ![null, messageId].includes(this.#messageId);
    // Where the file was replaced by an older copy meanwhile, another message may have the same number.
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
      // The file has another content now, all of which is new.
      this.#sessionId = "";
      this.#messageId = null;
      this.#highestSeq = 0;
      this.#offset = -1;
    }
    this.cursor = cursor;
  }
}

/**
 * The place of a cursor in its file; -1 for one of another form.
 * @param {string} cursor
 */
export function offsetOf(cursor) {
  const digits = /^([0-9]+)-/.exec(cursor);
  return digits ? Number(digits[1]) : -1;
}
