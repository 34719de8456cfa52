/** @file Keeps the children of an element in step with a list. */

/** @type {WeakMap<Element, Map<string, Kept>>} */
const known = new WeakMap();

/** @template T @param {Element} parent @param {T[]} items @param {Keeping<T>} how */
export function keepChildren(parent, items, { key, version, build, update }) {
  const before = known.get(parent) ?? new Map();
  /** @type {Map<string, Kept>} */
  const after = new Map();
  for (const item of items) {
    const id = key(item);
    if (after.has(id)) continue;
    const wanted = version(item);
    const kept = before.get(id);
    if (kept === undefined) after.set(id, { node: build(item), version: wanted });
    else {
      if (kept.version !== wanted) update(kept.node, item);
      after.set(id, { node: kept.node, version: wanted });
    }
  }
  for (const [id, { node }] of before) if (!after.has(id)) node.remove();
  place(
    parent,
    [...after.values()].map(({ node }) => node),
  );
  known.set(parent, after);
}

/** @param {Element} parent @param {HTMLElement[]} nodes */
function place(parent, nodes) {
  // A node that is moved loses the focus: the others are moved around it.
  const focused = nodes.find((node) => node.contains(document.activeElement));
  let at = parent.firstElementChild;
  for (const node of nodes) {
    if (at === node) at = at.nextElementSibling;
    else if (node === focused) {
      while (at !== null && at !== node) {
        const next = at.nextElementSibling;
        parent.append(at);
        at = next;
      }
      at = node.nextElementSibling;
    } else parent.insertBefore(node, at);
  }
}
