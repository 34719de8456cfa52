/** @file The streams of a page: each is opened anew until it is stopped, paused or refused. */

import { CallError } from "./call-error.js";
import { readEvents } from "./event-stream.js";
import { Backoff, isLasting } from "./retry.js";

/** The daemon sends something every 15 seconds: a silent stream is dead. */
const SILENCE_MS = 40_000;

export class Streams {
  /** @type {Set<AbortController>} */
  #open = new Set();
  /** @type {Set<() => void>} */
  #waiting = new Set();
  /** @type {Promise<void> | null} */
  #paused = null;
  #unpause = () => {};
  #isClosed = false;
  #request;
  #onState;
  #awayMs;

  /** @param {Requester} request @param {(state: ConnectionState) => void} onState @param {number} awayMs */
  constructor(request, onState, awayMs) {
    this.#request = request;
    this.#onState = onState;
    this.#awayMs = awayMs;
  }

  /** @param {StreamFollower} follower */
  follow(follower) {
    const stopped = new AbortController();
    void this.#run(follower, stopped.signal);
    return () => stopped.abort();
  }

  pause() {
    this.#paused ??= new Promise((resolve) => {
      this.#unpause = resolve;
    });
    for (const stream of this.#open) stream.abort();
  }

  resume() {
    this.#paused = null;
    this.#unpause();
    this.retry();
  }

  close() {
    this.#isClosed = true;
    for (const stream of this.#open) stream.abort();
    this.resume();
  }

  retry() {
    for (const wake of [...this.#waiting]) wake();
  }

  /** Until `retry` at most. @param {number} ms @param {AbortSignal} [signal] */
  async wait(ms, signal) {
    signal?.throwIfAborted();
    await new Promise((/** @type {(value?: unknown) => void} */ resolve) => {
      const wake = () => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", wake);
        this.#waiting.delete(wake);
        resolve();
      };
      const timer = setTimeout(wake, ms);
      signal?.addEventListener("abort", wake);
      this.#waiting.add(wake);
    });
    signal?.throwIfAborted();
  }

  /** @param {StreamFollower} follower @param {AbortSignal} stopped */
  async #run(follower, stopped) {
    const backoff = new Backoff();
    let lostAt = 0;
    const onLive = () => {
      backoff.reset();
      lostAt = 0;
      if (follower.isMain) this.#onState("live");
    };
    while (!stopped.aborted && !this.#isClosed) {
      if (this.#paused) {
        await this.#paused;
        lostAt = 0;
        continue;
      }
      const error = await this.#read(follower, stopped, onLive);
      if (stopped.aborted) return;
      if (this.#paused && !this.#isClosed) continue;
      if (error && isLasting(error.type)) {
        follower.onError?.(error);
        return;
      }
      if (this.#isClosed) break;
      lostAt ||= Date.now();
      if (follower.isMain) this.#onState(Date.now() - lostAt < this.#awayMs ? "reconnecting" : "away");
      await this.wait(Math.max(backoff.next(), error?.retryAfterMs ?? 0), stopped).catch(() => {});
    }
    if (!stopped.aborted) follower.onError?.(new CallError(-32001, "unauthenticated", "This page was closed."));
  }

  /** @param {StreamFollower} follower @param {AbortSignal} stopped @param {() => void} onLive */
  async #read(follower, stopped, onLive) {
    const stream = new AbortController();
    const end = () => stream.abort();
    stopped.addEventListener("abort", end);
    this.#open.add(stream);
    let timer = setTimeout(end, SILENCE_MS);
    const onAlive = () => {
      clearTimeout(timer);
      timer = setTimeout(end, SILENCE_MS);
    };
    try {
      const { path, headers } = follower.request();
      const response = await this.#request(path, { ...headers, Accept: "text/event-stream" }, stream.signal);
      onLive();
      if (!response.body) return null;
      for await (const { name, data } of readEvents(response.body, onAlive)) {
        const parsed = JSON.parse(data);
        if (name === "error") return new CallError(0, parsed.error.type, parsed.error.message, parsed.error);
        await follower.onEvent(name, parsed);
        if (stream.signal.aborted) return null;
      }
      return null;
    } catch (error) {
      if (error instanceof CallError) return error;
      // A fault of a handler is not to be hidden.
      if (!stream.signal.aborted) reportError(error);
      return null;
    } finally {
      clearTimeout(timer);
      stopped.removeEventListener("abort", end);
      this.#open.delete(stream);
      stream.abort();
    }
  }
}

/** @param {unknown} error */
function reportError(error) {
  setTimeout(() => {
    throw error;
  });
}
