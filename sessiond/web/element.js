import {safeAddress} from "./plain-text.js"

const SVG = "http://www.w3.org/2000/svg"
// Attributes that run script, load something, or hold markup.
const FORBIDDEN = /^(on.*|style|srcdoc|srcset|action|formaction|xlink:href|data)$/i

/**
 * `tag.class`. What is `false`, null and undefined is left out.
 * @template {keyof HTMLElementTagNameMap} Tag @param {Tag | `${Tag}.${string}`} name @param {Props} [props]
 * @param {...(Child | Child[])} children
 */
export function h(name, props = {}, ...children) {
	const [tag, ...classes] = name.split(".")
	const element = document.createElement(/** @type {Tag} */ (tag))
	if (classes.length > 0) element.className = classes.join(" ")
	setProps(element, props)
	element.append(...nodesOf(children))
	return element
}

/** @param {Child} label @param {(event: any) => void} onclick @param {Props} [props] @param {...Child} more */
export function button(label, onclick, props = {}, ...more) {
	return h("button", {type: "button", onclick, ...props}, label, ...more)
}

/** @param {Child} label @param {(event: any) => void} onclick @param {Props} [props] */
export function wordButton(label, onclick, props = {}) {
	return button(label, onclick, {...props, class: `quiet ${props.class ?? ""}`.trim()})
}

/** @param {string} tag @param {Record<string, string | number>} [props] @param {...Node} children */
export function svg(tag, props = {}, ...children) {
	const element = document.createElementNS(SVG, tag)
	setProps(element, props)
	element.append(...children)
	return element
}

/** @param {() => void} work */
export const nextFrame = (work) => requestAnimationFrame(work)

/** @param {Element} parent @param {...(Child | Child[])} children */
export function fill(parent, ...children) {
	parent.replaceChildren(...nodesOf(children))
}

/** @param {HTMLElement | SVGElement} element @param {Props} props */
function setProps(element, props) {
	for (const [name, value] of Object.entries(props)) {
		if (value === false || value === null || value === undefined) continue
		if (typeof value === "function") element.addEventListener(name.slice(2), value)
		else if (name.startsWith("--")) element.style.setProperty(name, String(value))
		else if (FORBIDDEN.test(name)) throw new TypeError(`an element of the page has no ${name}`)
		else if (name === "src" && !/^data:image\/(png|jpeg|gif|webp);base64,/.test(String(value))) continue
		else if (name === "href" && !String(value).startsWith("#") && safeAddress(String(value)) === null) continue
		else element.setAttribute(name, value === true ? "" : String(value))
	}
}

/** @param {(Child | Child[])[]} children */
function nodesOf(children) {
	return children
		.flat()
		.filter((child) => child !== false && child !== null && child !== undefined)
		.map((child) => (child instanceof Node ? child : String(child)))
}

/** @type {WeakMap<Element, Map<string, Kept>>} */
const known = new WeakMap()

/** Children in step with a list. @template T @param {Element} parent @param {T[]} items @param {Keeping<T>} how */
export function keepChildren(parent, items, {key, version, build, update}) {
	const before = known.get(parent) ?? new Map()
	/** @type {Map<string, Kept>} */
	const after = new Map()
	for (const item of items) {
		const id = key(item)
		if (after.has(id)) continue
		const wanted = version(item)
		const kept = before.get(id)
		if (kept === undefined) after.set(id, {node: build(item), version: wanted})
		else {
			if (kept.version !== wanted) update(kept.node, item)
			after.set(id, {node: kept.node, version: wanted})
		}
	}
	for (const [id, {node}] of before) if (!after.has(id)) node.remove()
	place(
		parent,
		[...after.values()].map(({node}) => node),
	)
	known.set(parent, after)
}

/** @param {Element} parent @param {HTMLElement[]} nodes */
function place(parent, nodes) {
	// A node that is moved loses the focus: the others are moved around it.
	const focused = nodes.find((node) => node.contains(document.activeElement))
	let at = parent.firstElementChild
	for (const node of nodes) {
		if (at === node) at = at.nextElementSibling
		else if (node === focused) {
			while (at !== null && at !== node) {
				const next = at.nextElementSibling
				parent.append(at)
				at = next
			}
			at = node.nextElementSibling
		} else parent.insertBefore(node, at)
	}
}
