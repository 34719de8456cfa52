/** @file Builds elements of text and elements, never of markup: the one way to make nodes. */

import { safeAddress } from "./plain-text.js";

const SVG = "http://www.w3.org/2000/svg";
// Attributes that run script, load something, or hold markup.
const FORBIDDEN = /^(on.*|style|srcdoc|srcset|action|formaction|xlink:href|data)$/i;

/**
 * `false`, null and undefined are left out.
 * @template {keyof HTMLElementTagNameMap} Tag @param {Tag} tag @param {Props} [props]
 * @param {...(Child | Child[])} children
 */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  setProps(element, props);
  element.append(...nodesOf(children));
  return element;
}

/** @param {Child} label @param {(event: any) => void} onclick @param {Props} [props] */
export function button(label, onclick, props = {}) {
  return h("button", { type: "button", onclick, ...props }, label);
}

/** @param {Child} label @param {(event: any) => void} onclick @param {Props} [props] */
export function wordButton(label, onclick, props = {}) {
  return button(label, onclick, { ...props, class: `quiet ${props.class ?? ""}`.trim() });
}

/** @template {HTMLElement} T @param {new () => T} type @param {Props} [props] */
export function custom(type, props = {}) {
  const element = new type();
  setProps(element, props);
  return element;
}

/** @param {string} tag @param {Record<string, string | number>} [props] @param {...Node} children */
export function svg(tag, props = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(props)) {
    if (FORBIDDEN.test(name)) throw new TypeError(`an element of the page has no ${name}`);
    element.setAttribute(name, String(value));
  }
  element.append(...children);
  return element;
}

/** @param {Element} parent @param {...(Child | Child[])} children */
export function fill(parent, ...children) {
  parent.replaceChildren(...nodesOf(children));
}

/** @param {Element} element @param {Props} props */
function setProps(element, props) {
  for (const [name, value] of Object.entries(props)) {
    if (value === false || value === null || value === undefined) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (FORBIDDEN.test(name)) throw new TypeError(`an element of the page has no ${name}`);
    else if (name === "src" && !/^data:image\/(png|jpeg|gif|webp);base64,/.test(String(value))) continue;
    else if (name === "href" && !String(value).startsWith("#") && safeAddress(String(value)) === null) continue;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
}

/** @param {(Child | Child[])[]} children */
function nodesOf(children) {
  return children
    .flat()
    .filter((child) => child !== false && child !== null && child !== undefined)
    .map((child) => (child instanceof Node ? child : String(child)));
}
