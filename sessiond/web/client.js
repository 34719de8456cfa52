/** @file The daemon, as the page talks to it: calls, and streams that lose and double nothing. Knows no DOM. */

import { CallError, callErrorOf } from "./call-error.js";
import { FollowedSession, offsetOf } from "./followed-session.js";
import { Backoff, isPassing, isRepeatable, keyed, RECONNECT_MS } from "./retry.js";
import { Streams } from "./streams.js";

export { CallError } from "./call-error.js";

const STORED = "sessiond.token";
/** A restart takes less. */
const AWAY_MS = 4000;

export class Client extends EventTarget {
  /** @type {{scopes: string[], expiresAt?: number}} */
  caller = { scopes: [] };
  server = { name: "", version: "" };
  /** @type {Record<string, number>} */
  limits = {};
  /** @type {ConnectionState} */
  #state = "connecting";
  #token = "";
  #base;
  #fetch;
  #storage;
  #streams;

  /** @param {ClientOptions} [options] */
  constructor({ fetch, storage = globalThis.sessionStorage, base = "", awayMs = AWAY_MS } = {}) {
    super();
    this.#fetch = fetch ?? globalThis.fetch.bind(globalThis);
    this.#storage = storage;
    this.#base = base;
    this.#streams = new Streams(
      (path, headers, signal) => this.#request(path, { headers, signal }),
      (state) => this.#become(state),
      awayMs,
    );
  }

  /** Event `state` at each change. */
  get state() {
    return this.#state;
  }

  /** Trades the one-time code for a token, or takes the stored one. @param {string} [code] */
  async open(code) {
    if (code) {
      const traded = await this.#post("/page/token", { code });
      this.#storage.setItem(STORED, JSON.stringify({ token: traded.token, expiresAt: traded.expiresAt }));
    }
    const stored = JSON.parse(this.#storage.getItem(STORED) ?? "null");
    if (!stored) {
      this.#become("refused");
      throw new CallError(-32001, "unauthenticated", "This page has no token. Run `sessiond web` again.");
    }
    this.#token = stored.token;
    const hello = await this.call("initialize", { protocol: 1, client: { name: "page" } });
    this.server = hello.server;
    this.limits = hello.limits;
    this.caller = { ...hello.caller, expiresAt: stored.expiresAt };
  }

  /** @param {Scope} scope */
  may(scope) {
    return this.caller.scopes.includes(scope) || this.caller.scopes.includes("admin");
  }

  retry() {
    this.#streams.retry();
  }

  /** A browser has six connections for all pages together. */
  pause() {
    this.#streams.pause();
  }

  resume() {
    this.#streams.resume();
  }

  async close() {
    this.#streams.close();
    this.#storage.removeItem(STORED);
    try {
      await this.#post("/page/close", {});
    } finally {
      this.#token = "";
      this.#become("refused");
    }
  }

  /**
   * What does no harm twice is repeated for some seconds.
   * @param {string} method @param {Record<string, unknown>} [params] @param {{signal?: AbortSignal}} [options]
   */
  async call(method, params = {}, { signal } = {}) {
    const backoff = new Backoff();
    const until = Date.now() + RECONNECT_MS;
    const request = { jsonrpc: "2.0", id: 1, method, params: keyed(method, params) };
    for (;;) {
      try {
        return (await this.#post("/rpc", request, signal)).result;
      } catch (error) {
        const mayRepeat = error instanceof CallError && isPassing(error.type) && isRepeatable(method);
        if (!mayRepeat || Date.now() > until) throw error;
        await this.#streams.wait(Math.max(backoff.next(), error.retryAfterMs ?? 0), signal);
      }
    }
  }

  /** Returns what ends it. @param {SessionsFollower} follower */
  followSessions({ onChanged, onFresh, onError }) {
    return this.#streams.follow({
      isMain: true,
      request: () => ({ path: "/events", headers: {} }),
      onEvent: async (name, data) => {
        if (name === "changed") onChanged(data);
        else if (name === "ready") await onFresh();
      },
      onError,
    });
  }

  /** Returns what ends it. @param {string} key @param {string} cursor @param {SessionFollower} follower */
  followSession(key, cursor, { onMessage, onDelta, onTool, onResync, onError }) {
    const followed = new FollowedSession(cursor);
    return this.#streams.follow({
      isMain: false,
      request: () => ({ path: pathOf(key), headers: { "Last-Event-ID": followed.cursor } }),
      onEvent: (name, data) => {
        if (name === "message") {
          const kind = followed.take(data);
          if (kind) onMessage({ ...data, grown: kind === "grown" });
        } else if (name === "resync") {
          followed.resync(data);
          onResync?.(data);
        } else if (name === "delta") onDelta?.(data);
        else if (name === "tool") onTool?.(data);
      },
      onError,
    });
  }

  /**
   * Oldest first; fewer where the session ends.
   * @param {string} key @param {string} cursor @param {number} limit @returns {Promise<ArrivedMessage[]>}
   */
  async readForward(key, cursor, limit) {
    const newest = await this.call("chat.history", { sessionKey: key, limit: 1 });
    const end = Math.max(...newest.positions.map((/** @type {{cursor: string}} */ one) => offsetOf(one.cursor)), -1);
    if (end <= offsetOf(cursor)) return [];
    /** @type {Map<string | number, ArrivedMessage>} */
    const found = new Map();
    return new Promise((resolve, reject) => {
      const settle = () => {
        stop();
        resolve([...found.values()]);
      };
      const stop = this.followSession(key, cursor, {
        onMessage: (event) => {
          const id = event.messageId ?? event.seq;
          if (found.size === limit && !found.has(id)) return settle();
          found.set(id, event);
          if (offsetOf(event.cursor) >= end) settle();
        },
        onResync: ({ reason }) => reason !== "lagged" && settle(),
        onError: reject,
      });
    });
  }

  /** @param {string} path @param {Record<string, unknown>} body @param {AbortSignal} [signal] */
  async #post(path, body, signal) {
    const headers = { "Content-Type": "application/json" };
    const response = await this.#request(path, { method: "POST", headers, body: JSON.stringify(body), signal });
    try {
      return await response.json();
    } catch (error) {
      throw signal?.aborted ? signal.reason : CallError.away(error);
    }
  }

  /** @param {string} path @param {RequestInit} init */
  async #request(path, { headers, ...init }) {
    const sent = this.#token;
    const all = new Headers(headers);
    if (sent) all.set("Authorization", `Bearer ${sent}`);
    let response;
    try {
      response = await this.#fetch(this.#base + path, {
        ...init,
        headers: all,
        // Nothing that the browser knows goes along, and nothing of this stays with it.
        credentials: "omit",
        cache: "no-store",
        redirect: "error",
        referrerPolicy: "no-referrer",
      });
    } catch (error) {
      throw init.signal?.aborted ? init.signal.reason : CallError.away(error);
    }
    if (response.ok) return response;
    const error = await callErrorOf(response);
    if (error.type === "unauthenticated" && sent !== "" && sent === this.#token) {
      this.#streams.close();
      this.#become("refused");
    }
    throw error;
  }

  /** @param {ConnectionState} state */
  #become(state) {
    if (state === this.#state || (this.#state === "refused" && !this.#token)) return;
    this.#state = state;
    this.dispatchEvent(new Event("state"));
  }
}

/** @param {string} key */
function pathOf(key) {
  return `/sessions/${encodeURIComponent(key)}/history?follow=1`;
}
