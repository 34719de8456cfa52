// Random values that are the same at each run.

/** A number from 0 to 1, another one at each call. @param {number} seed */
export function randomNumbers(seed) {
	let state = seed * 2654435761
	return () => {
		state = (Math.imul(state ^ (state >>> 15), 1 | state) + 0x6d2b79f5) | 0
		return ((state ^ (state >>> 14)) >>> 0) / 2 ** 32
	}
}

/** Up to 80 characters of those given. @param {number} seed @param {string} characters */
export function randomText(seed, characters) {
	const random = randomNumbers(seed)
	const all = [...characters]
	return Array.from({length: Math.floor(random() * 80)}, () => all[Math.floor(random() * all.length)]).join("")
}
