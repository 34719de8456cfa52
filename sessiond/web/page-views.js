/** @file What the columns show, and the ways from one view to another: by address, by key, by button. */

import { listenForFiles } from "./dropped-files.js";
import { button, h, wordButton } from "./element.js";
import { FactsPanel } from "./facts-panel.js";
import { SearchBox } from "./search-box.js";
import { SessionView } from "./session-view.js";
import { listen, plain, withCtrl } from "./shortcuts.js";
import { SpawnForm } from "./spawn-form.js";
import { UsageView } from "./usage-view.js";

/** The element of the skeleton. @param {string} id */
const place = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

export class PageViews {
  /** @param {PageContext} page @param {import("./session-tree.js").SessionTree} tree */
  constructor(page, tree) {
    this.page = page;
    this.tree = tree;
    this.columns = place("columns");
    this.session = new SessionView(page, () => this.show(this.shown === "facts" ? "session" : "facts"));
    this.facts = new FactsPanel(page, () => this.show("session"));
    this.usage = new UsageView(page);
    this.search = new SearchBox(page);
    this.spawn = new SpawnForm(page);
    this.shown = "";
    /** The session that is open. */
    this.current = "";
    this.columns.append(h("div", { class: "middle" }, this.session, this.usage), this.facts);
    document.body.append(this.search, this.spawn);
    this.help = listen(this.shortcuts());
    place("bar-buttons").append(...this.barButtons());
    place("search-button").addEventListener("click", () => this.search.open(this.current));
    page.addEventListener("open", () => this.route());
    page.list.addEventListener("change", () => this.showTitle());
    addEventListener("hashchange", () => this.route());
    listenForFiles((files) => this.takeFiles(files));
    this.route();
  }

  /** Shows what the address says. */
  route() {
    const { page, session, current } = this;
    const { view, key, cursor } = page.takeAddress();
    if (view === "usage") {
      void this.usage.load();
      return this.show("usage");
    }
    this.current = key;
    if (key !== current || cursor !== undefined) session.show(key, cursor);
    this.tree.select(key);
    this.facts.show(key);
    this.showTitle();
    this.show(key ? "session" : "tree");
  }

  /** @param {string} view what has the place where there is place for one */
  show(view) {
    this.shown = view;
    this.columns.dataset.view = view;
    this.usage.hidden = view !== "usage";
    this.session.hidden = view === "usage";
  }

  showTitle() {
    const title = this.current ? `${this.page.nameOf(this.current)} · sessiond` : "sessiond";
    if (document.title !== title) document.title = title;
  }

  toTree(toFilter = false) {
    if (this.shown !== "usage") this.show("tree");
    if (toFilter) this.tree.filter.select();
    else this.tree.focusCurrent();
  }

  /** Dropped files go to the form that is open, else to the session, else to a new task. @param {File[]} files */
  takeFiles(files) {
    const { page, spawn, session, current } = this;
    if (!spawn.isOpen && current !== "" && page.may("send")) void session.composer.addFiles(files);
    else if (page.may("spawn")) void spawn.open(files);
  }

  barButtons() {
    const keys = wordButton("?", () => this.help.showModal(), { "aria-label": "Keys", title: "Keys (?)" });
    const usage = wordButton("Usage", () => this.page.go("usage"));
    return this.page.may("spawn") ? [button("New task", () => this.spawn.open()), usage, keys] : [usage, keys];
  }

  /** @returns {import("./shortcuts.js").Shortcut[]} */
  shortcuts() {
    const { page, search, session, spawn } = this;
    const { transcript } = session;
    return [
      { keys: "Ctrl K", what: "search everything", fits: withCtrl("k"), act: () => search.open(this.current) },
      { keys: "f", what: "search in this session", fits: plain("f"), act: () => search.open(this.current, true) },
      { keys: "/", what: "filter the sessions", fits: plain("/"), act: () => this.toTree(true) },
      { keys: "j  k", what: "next, previous prompt", fits: plain("j"), act: () => transcript.jump(1) },
      { keys: "", what: "", fits: plain("k"), act: () => transcript.jump(-1) },
      { keys: "g", what: "to the end", fits: plain("g"), act: () => transcript.toEnd() },
      { keys: "r", what: "write a message", fits: plain("r"), act: () => session.composer.focus() },
      { keys: "n", what: "new task", fits: plain("n"), act: () => page.may("spawn") && spawn.open() },
      { keys: "u", what: "usage", fits: plain("u"), act: () => page.go("usage") },
      { keys: "t  Esc", what: "to the tree", fits: plain("t"), act: () => this.toTree() },
      { keys: "", what: "", fits: plain("Escape"), act: () => this.toTree() },
      { keys: "↑ ↓ ← →", what: "in the tree: move, fold, open" },
    ];
  }
}
