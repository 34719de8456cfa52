/** @file The page begins: it signs in and shows the tree, then the rest. */

import { Client } from "./client.js";
import { ConnectionState } from "./connection-state.js";
import { fill, h } from "./element.js";
import { PageContext } from "./page-context.js";
import { problemNote } from "./problem-note.js";
import { ReadingMarks } from "./reading-marks.js";
import { SessionList } from "./session-list.js";
import { SessionTree } from "./session-tree.js";

const MINUTE_MS = 60_000;

/** @param {string} id */
const place = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

/** The one-time code, cleared before anything else happens. */
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
  const list = new SessionList(client, requestAnimationFrame);
  const page = new PageContext(client, list, new ReadingMarks(localStorage, sessionStorage));
  const tree = new SessionTree(page);
  fill(place("columns"), h("nav", { "aria-label": "Sessions" }, tree));
  place("foot").append(new ConnectionState(page));
  document.addEventListener("visibilitychange", () => (document.hidden ? client.pause() : client.resume()));
  setInterval(() => !document.hidden && list.tell(), MINUTE_MS);
  const showRest = async () => {
    try {
      new (await import("./page-views.js")).PageViews(page, tree);
    } catch (problem) {
      // The daemon went away. A browser may keep to its failure: the page begins anew.
      if (!(problem instanceof TypeError)) throw problem;
      client.addEventListener("state", () => client.state === "live" && location.reload());
    }
  };
  list.addEventListener("change", showRest, { once: true });
  list.start();
}

/** @param {unknown} problem @param {(() => void) | undefined} again */
function signInNote(problem, again) {
  return h(
    "div",
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

void begin();
