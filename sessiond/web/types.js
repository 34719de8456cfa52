/**
 * @file The shapes that come from the daemon, as far as the page looks at them. Source: docs/protocol.md.
 *
 * Everything in a message is text of agents: a field may be missing or of another type than it should be.
 */

/**
 * @typedef {object} Row one session, as `sessions_list` shows it
 * @property {string} key
 * @property {string} sessionId
 * @property {string} source
 * @property {string} kind
 * @property {string} channel
 * @property {number} updatedAt
 * @property {number} createdAt
 * @property {string} transcriptPath
 * @property {string} [title]
 * @property {string} [derivedTitle]
 * @property {string} [displayName]
 * @property {string} [subject]
 * @property {string} [label]
 * @property {string} [cwd]
 * @property {string} [nativeId]
 * @property {boolean} [readOnly]
 * @property {boolean} [partial]
 * @property {boolean} [archived]
 * @property {string} [forkedFrom]
 * @property {string} [continues]
 * @property {string} [model]
 * @property {string} [modelProvider]
 * @property {number} [contextTokens]
 * @property {number} [totalTokens]
 * @property {number} [inputTokens]
 * @property {number} [outputTokens]
 * @property {number} [estimatedCostUsd]
 * @property {string} [status]
 * @property {string} [state]
 * @property {{since?: number, questions?: number, title?: string}} [waiting]
 * @property {number} [queuedRuns]
 * @property {number} [startedAt]
 * @property {number} [endedAt]
 * @property {number} [runtimeMs]
 * @property {string} [spawnedBy]
 * @property {string[]} [childSessions]
 * @property {boolean} [sandboxed]
 * @property {number} [messageCount]
 * @property {number} [corruptRecords]
 * @property {string} [lastMessagePreview]
 */

/** @typedef {Record<string, any>} Message a message object as it stands in the transcript */

/**
 * @typedef {object} Position where a message stands
 * @property {string | null} [id]
 * @property {number} seq
 * @property {string} cursor
 * @property {string} [timestamp]
 */

/**
 * @typedef {object} Entry one message of a transcript with its place
 * @property {string} id what tells it from all others: the record's id, else its number
 * @property {number} seq
 * @property {string} cursor
 * @property {number | null} at when, in milliseconds since 1970
 * @property {Message} message
 */

/**
 * @typedef {object} RunEnding
 * @property {string} runId
 * @property {string} status
 * @property {number} seq
 * @property {boolean} replied
 * @property {string} [error]
 * @property {string} [endedAt]
 * @property {string} [printed]
 */

/** @typedef {{kind: string, seq: number, cursor: string, timestamp?: string}} Marker */
/** @typedef {{seq: number, files: {name: string, bytes: number}[]}} AttachedFiles */

/**
 * @typedef {object} HistoryPage the answer of `chat.history`
 * @property {string} sessionKey
 * @property {string} sessionId
 * @property {Message[]} messages
 * @property {Position[]} positions
 * @property {boolean} hasMore
 * @property {string | null} [nextCursor]
 * @property {string} cursor
 * @property {number} skipped
 * @property {boolean} [contentRedacted]
 * @property {RunEnding[]} [runs]
 * @property {AttachedFiles[]} [attachments]
 * @property {Marker[]} [markers]
 */

/** @typedef {{name: string, content: string, encoding: "base64", mimeType?: string, bytes: number}} Attachment */
/** @typedef {{sessionKey: string, cursor: string, timestamp?: string | number, role: string, snippet: string}} Match */
/** @typedef {{id: string, name?: string, runtime?: string, liveRuns?: number}} Agent */

export {};
