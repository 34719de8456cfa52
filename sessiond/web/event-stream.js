/** @file Server-Sent Events of a response: `EventSource` sends no token. Source: HTML Living Standard, 9.2. */

export class EventParser {
  /** @type {string[]} */
  #line = [];
  #name = "";
  /** @type {string | null} */
  #id = null;
  /** @type {string[]} */
  #data = [];

  /** @param {string} chunk */
  push(chunk) {
    /** @type {ServerEvent[]} */
    const events = [];
    let start = 0;
    for (let end = chunk.indexOf("\n"); end >= 0; end = chunk.indexOf("\n", start)) {
      // A message may be megabytes: its parts are joined once.
      this.#line.push(chunk.slice(start, end));
      const line = this.#line.join("");
      this.#line = [];
      start = end + 1;
      const event = this.#take(line.endsWith("\r") ? line.slice(0, -1) : line);
      if (event) events.push(event);
    }
    if (start < chunk.length) this.#line.push(chunk.slice(start));
    return events;
  }

  /** @param {string} line */
  #take(line) {
    if (line === "") return this.#dispatch();
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (field === "event") this.#name = value;
    else if (field === "id") this.#id = value;
    else if (field === "data") this.#data.push(value);
    return null;
  }

  #dispatch() {
    const event = { name: this.#name || "message", id: this.#id, data: this.#data.join("\n") };
    const isEvent = this.#data.length > 0;
    this.#name = "";
    this.#id = null;
    this.#data = [];
    return isEvent ? event : null;
  }
}

/** `onAlive` is called for comments, too. @param {ReadableStream<Uint8Array>} body @param {() => void} [onAlive] */
export async function* readEvents(body, onAlive = () => {}) {
  const parser = new EventParser();
  const decoder = new TextDecoder();
  const reader = body.getReader();
  try {
    for (;;) {
      // A lost connection is an end like any other.
      const { done, value } = await reader.read().catch(() => ({ done: true, value: undefined }));
      if (done) return;
      onAlive();
      yield* parser.push(decoder.decode(value, { stream: true }));
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}
