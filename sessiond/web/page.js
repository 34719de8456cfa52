/** @file The page put together: signs in, builds the columns, leads from view to view. */

import { Client } from "./client.js";
import { ConnectionState } from "./connection-state.js";
import { button, fill, h, wordButton } from "./element.js";
import { FactsPanel } from "./facts-panel.js";
import { PageContext } from "./page-context.js";
import { problemNote } from "./problem-note.js";
import { ReadingMarks } from "./reading-marks.js";
import { SearchBox } from "./search-box.js";
import { SessionList } from "./session-list.js";
import { SessionTree } from "./session-tree.js";
import { SessionView } from "./session-view.js";
import { listen, plain, withCtrl } from "./shortcuts.js";
import { SpawnForm } from "./spawn-form.js";
import { UsageView } from "./usage-view.js";

const MINUTE_MS = 60_000;

/** The element of the skeleton. @param {string} id */
const place = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

/** The one-time code of the address, which is cleared before anything else happens. */
function takeCode() {
  const fragment = location.hash.slice(1);
  if (fragment === "" || fragment.startsWith("/")) return undefined;
  history.replaceState(null, "", location.pathname);
  return fragment;
}

async function begin() {
  const code = takeCode();
  const client = new Client();
  try {
    await client.open(code);
  } catch (problem) {
    const again = /** @type {any} */ (problem)?.type === "unauthenticated" ? undefined : () => location.reload();
    return fill(place("columns"), signInNote(problem, again));
  }
  build(client);
}

/** @param {Client} client */
function build(client) {
  const list = new SessionList(client, requestAnimationFrame);
  const marks = new ReadingMarks(localStorage, sessionStorage);
  const page = new PageContext(client, list, marks, { open, spawn: (files) => void spawn.open(files) });
  const tree = new SessionTree(page);
  const session = new SessionView(page, {
    back: () => go(""),
    facts: () => show(shown === "facts" ? "session" : "facts"),
  });
  const facts = new FactsPanel(page, () => show("session"));
  const usage = new UsageView(page, () => history.back());
  const search = new SearchBox(page);
  const spawn = new SpawnForm(page);
  const columns = place("columns");
  let shown = "";
  let current = "";
  /** @type {string | undefined} */
  let jump;

  fill(columns, h("nav", { "aria-label": "Sessions" }, tree), h("main", {}, session, usage), facts);
  document.body.append(search, spawn);
  place("foot").append(new ConnectionState(page));
  fill(place("bar-buttons"), ...barButtons());
  place("search-button").addEventListener("click", () => search.open(current));
  addEventListener("hashchange", () => route());
  document.addEventListener("visibilitychange", () => (document.hidden ? client.pause() : client.resume()));
  setInterval(() => !document.hidden && list.tell(), MINUTE_MS);
  dropFiles(page, spawn, session, () => current);
  const help = listen(shortcuts());
  list.start();
  route();

  /** @param {string} key @param {string} [cursor] */
  function open(key, cursor) {
    jump = cursor;
    if (!list.rows.get(key)) void list.fetchRow(key).catch(() => {});
    const address = `#/session/${encodeURIComponent(key)}`;
    if (location.hash === address) route();
    else location.hash = address;
  }
  /** @param {string} address behind `#/` */
  function go(address) {
    location.hash = `#/${address}`;
  }
  function route() {
    const [, view = "", rest = ""] = /^#\/([a-z]*)\/?(.*)$/.exec(location.hash) ?? [];
    const key = view === "session" ? decoded(rest) : "";
    if (key !== current || jump !== undefined || view === "session") session.show(key, jump);
    current = view === "usage" ? current : key;
    jump = undefined;
    tree.select(key);
    facts.show(key);
    if (view === "usage") void usage.load();
    show(view === "usage" ? "usage" : key ? "session" : "tree");
    document.title = key ? `${page.nameOf(key)} · sessiond` : "sessiond";
  }
  /** @param {string} view what has the place where there is place for one @returns {void} */
  function show(view) {
    shown = view;
    columns.dataset.view = view;
    usage.hidden = view !== "usage";
    session.hidden = view === "usage";
  }
  function toTree(toFilter = false) {
    show(shown === "usage" ? "usage" : "tree");
    if (toFilter) tree.filter.select();
    else tree.focusCurrent();
  }
  function barButtons() {
    const help_ = wordButton("?", () => help.showModal(), { "aria-label": "Keys", title: "Keys (?)" });
    const task = page.may("spawn") && button("New task", () => spawn.open());
    return [task, wordButton("Usage", () => go("usage")), help_];
  }
  /** @returns {import("./shortcuts.js").Shortcut[]} */
  function shortcuts() {
    return [
      { keys: "Ctrl K", what: "search everything that was said", fits: withCtrl("k"), act: () => search.open(current) },
      {
        keys: "Ctrl Shift F",
        what: "search in this session",
        fits: (event) => event.key.toLowerCase() === "f" && event.ctrlKey && event.shiftKey,
        act: () => search.open(current, true),
      },
      {
        keys: "/",
        what: "filter the sessions",
        fits: plain("/"),
        act: () => toTree(true),
      },
      { keys: "j  k", what: "next, previous prompt", fits: plain("j"), act: () => void session.transcript?.jump(1) },
      { keys: "", what: "", fits: plain("k"), act: () => void session.transcript?.jump(-1) },
      { keys: "g", what: "to the end", fits: plain("g"), act: () => void session.transcript?.toEnd() },
      { keys: "r", what: "write a message", fits: plain("r"), act: () => session.composer?.focus() },
      { keys: "n", what: "new task", fits: plain("n"), act: () => page.may("spawn") && void spawn.open() },
      { keys: "u", what: "usage", fits: plain("u"), act: () => go("usage") },
      { keys: "t", what: "to the tree", fits: plain("t"), act: () => toTree() },
      { keys: "↑ ↓ ← →", what: "in the tree: move, fold, open" },
      {
        keys: "Esc",
        what: "back to the tree",
        fits: plain("Escape"),
        act: () => toTree(),
      },
    ];
  }
}

/** Files dropped anywhere go to the form that is open, else to the session, else to a new task. @param {PageContext} page @param {SpawnForm} spawn @param {SessionView} session @param {() => string} current */
function dropFiles(page, spawn, session, current) {
  const body = document.body;
  addEventListener("dragover", (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    body.classList.add("dropping");
  });
  addEventListener("dragleave", (event) => event.relatedTarget === null && body.classList.remove("dropping"));
  addEventListener("drop", (event) => {
    body.classList.remove("dropping");
    const files = [...(event.dataTransfer?.files ?? [])];
    if (files.length === 0) return;
    event.preventDefault();
    if (!spawn.isOpen && current() !== "" && page.may("send")) void session.composer?.addFiles(files);
    else if (page.may("spawn")) void spawn.open(files);
  });
}

/** @param {unknown} problem @param {(() => void) | undefined} again */
function signInNote(problem, again) {
  return h(
    "main",
    { class: "sign-in" },
    h("h1", {}, "sessiond"),
    h("p", {}, "This page opens with a code that is good once, for 30 seconds. Ask for one in a terminal:"),
    h("pre", {}, "sessiond web"),
    h(
      "p",
      { class: "hint" },
      "It reads. ",
      h("code", {}, "--write"),
      " may send and spawn, ",
      h("code", {}, "--admin"),
      " may do everything.",
    ),
    problemNote(problem, again ? { again } : {}),
  );
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

void begin();
