/**
 * The shapes that several modules of the page share; for the checker alone, never served.
 *
 * What comes from the daemon is described as far as the page looks at it. Source: docs/protocol.md. Everything in a
 * message is text of agents: a field may be missing or of another type than it should be.
 */

/** One session, as `sessions_list` shows it. */
interface Row {
	key: string
	sessionId: string
	/** On the page the name of the machine, if it is another one. */
	source: string
	machine?: string
	awaySince?: number
	kind: string
	channel: string
	updatedAt: number
	createdAt: number
	transcriptPath: string
	title?: string
	task?: string
	/** Rows of a session whose run writes have neither this nor `lastMessagePreview`. */
	derivedTitle?: string
	displayName?: string
	subject?: string
	label?: string
	cwd?: string
	nativeId?: string
	readOnly?: boolean
	partial?: boolean
	archived?: boolean
	forkedFrom?: string
	continues?: string
	model?: string
	modelProvider?: string
	contextTokens?: number
	totalTokens?: number
	inputTokens?: number
	outputTokens?: number
	estimatedCostUsd?: number
	status?: string
	state: SessionState
	waiting?: {since?: number; questions?: number; title?: string}
	queuedRuns?: number
	startedAt?: number
	endedAt?: number
	runtimeMs?: number
	spawnedBy?: string
	childSessions?: string[]
	sandboxed?: boolean
	messageCount?: number
	corruptRecords?: number
	lastMessagePreview?: string
}

/** One way to answer; its label is the agent's. */
interface QuestionOption {
	id: string
	label: string
	kind: "allow_once" | "allow_always" | "reject_once" | "reject_always"
}

/** What an agent asks a person. */
interface Question {
	id: string
	sessionKey: string
	title?: string
	detail?: string
	options: QuestionOption[]
	/** It is asked on another machine, and answered only there. */
	readOnly?: boolean
	askedAt: number
	expiresAt?: number
	status: string
	toolCallId?: string
	answer?: {optionId?: string; by?: string; note?: string; reason?: string}
}

/** A message object as it stands in the transcript. */
// biome-ignore lint/suspicious/noExplicitAny: anything may stand in it, and every use checks.
type Message = Record<string, any>

/** One message with its place. `id` tells it from all others; `at` is in milliseconds since 1970. */
interface Entry {
	id: string
	seq: number
	cursor: string
	at: number | null
	message: Message
}

/** A message as a stream or a page brings it. */
interface PlacedMessage {
	messageId?: string | null
	seq: number
	cursor: string
	message: Message
	timestamp?: string
}

interface RunEnding {
	runId: string
	status: string
	seq: number
	replied: boolean
	error?: string
	printed?: string
}

/** A message whose run waits for its turn. */
interface QueuedMessage {
	runId: string
	message: Message
}

interface Marker {
	kind: string
	seq: number
	cursor: string
}

type SentFiles = {name: string; bytes: number}[]

/** The answer of `chat.history`. */
interface HistoryPage {
	messages: Message[]
	positions: {id?: string | null; seq: number; cursor: string; timestamp?: string}[]
	hasMore: boolean
	nextCursor?: string | null
	cursor: string
	skipped: number
	contentRedacted?: boolean
	runs?: RunEnding[]
	currentRun?: string
	queued?: QueuedMessage[]
	attachments?: {seq: number; files: SentFiles}[]
	markers?: Marker[]
}

interface AgentChoice {
	id: string
	name?: string
}

interface Match {
	sessionKey: string
	cursor: string
	timestamp: number
	role: string
	snippet: string
}

/** A sum of `sessions.usage`. */
interface TokenSum {
	inputTokens: number
	outputTokens: number
	cacheRead: number
	cacheWrite: number
	totalTokens: number
	costUsd?: number
}

/** A part of a message. */
type Part =
	| {kind: "text" | "thinking"; text: string}
	| {kind: "toolCall"; id: string; name: string; args: unknown}
	| {kind: "image"; mimeType: string; data: string}
	| {kind: "other"; name: string}

type ToolCallPart = Extract<Part, {kind: "toolCall"}>

/** A change of a file that a tool call asks for. */
type Change = {path: string; before: string; after: string} | {path: string; patch: string}

interface DiffLine {
	sign: " " | "+" | "-" | "@"
	text: string
}

type Span = {type: "text" | "code" | "strong" | "em"; text: string} | {type: "link"; text: string; address: string}

type Block =
	| {type: "paragraph" | "quote"; text: string}
	| {type: "heading"; level: number; text: string}
	| {type: "code"; language: string; text: string}
	| {type: "list"; isNumbered: boolean; start: number; items: {depth: number; text: string}[]}
	| {type: "table"; rows: string[][]}
	| {type: "rule"}

/**
 * A message on the screen. `results` by the id of the call; `isFirst`: it says who speaks, another one than before or a
 * while later; `isRunning`: its calls without a result are running just now.
 */
interface MessagePiece {
	type: "message"
	key: string
	version: string
	entry: Entry
	results: Map<string, Entry>
	isFirst: boolean
	isRunning: boolean
	files: SentFiles
}

/** What a transcript shows, from top to bottom. What has another `version` looks otherwise. */
type Piece =
	| MessagePiece
	| {type: "day"; key: string; version: string; at: number}
	| {type: "gap"; key: string; version: string; ms: number}
	| {type: "marker"; key: string; version: string; kind: string}
	| {type: "run"; key: string; version: string; run: RunEnding}
	| BesidePiece

/** What stands among the messages by its time. */
type BesidePiece =
	| {type: "child"; key: string; version: string; at: number; childKey: string; row: Row}
	| {type: "question"; key: string; version: string; at: number; question: Question}

interface LiveTool {
	id: string
	name: string
	args: unknown
	phase: string
}

/** How a session is doing. */
type SessionState = "waiting" | "running" | "queued" | "error" | "aborted" | "done" | "idle"

type Grouping = "project" | "agent"

/** A line of the tree. `id` of a session is its canonical key; `place`: project or agent, where the group does not say it. */
type GroupLine = {type: "group"; id: string; name: string; detail?: string; count: number; isOpen: boolean}
interface SessionLine {
	type: "session"
	id: string
	row: Row
	depth: number
	below: number
	isOpen: boolean
	failedBelow: number
	place: string
}
type TreeLine = GroupLine | SessionLine

interface Exchange {
	from: string
	to: string
	messages: number
	isSpawn: boolean
}

/** By what usage is told apart. */
type UsageBy = "day" | "model" | "project" | "agent" | "program" | "session"

/** What an element is built with. */
type Child = Node | string | number | null | undefined | false
// biome-ignore lint/suspicious/noExplicitAny: which event it is depends on the name.
type Listener = (event: any) => void
type Props = Record<string, string | number | boolean | null | undefined | Listener>

/** What a token permits. */
type Scope = "list" | "read" | "send" | "spawn" | "answer" | "admin"

/** `refused`: the token is over. */
type ConnectionState = "connecting" | "live" | "reconnecting" | "away" | "refused"

/** A message as a stream brings it. One that has `grown` replaces the one with its `messageId`. */
interface ArrivedMessage {
	sessionKey: string
	sessionId: string
	messageId: string | null
	seq: number
	cursor: string
	message: Message
	usage?: Record<string, unknown>
	grown?: boolean
}

interface Resync {
	sessionKey: string
	reason: "lagged" | "rewritten" | "reset"
	cursor: string
}

/** `onError`: the daemon refuses the stream, which is over. */
interface SessionFollower {
	onMessage: (event: ArrivedMessage) => void
	onDelta?: (event: {
		sessionKey: string
		runId: string
		text: string
		omitted?: {bytes: number}
		soFar?: boolean
	}) => void
	// biome-ignore lint/suspicious/noExplicitAny: what a tool says is not known.
	onTool?: (event: Record<string, any>) => void
	onResync?: (event: Resync) => void
	onError?: (error: CallError) => void
}

/**
 * `onFresh`: nothing is missed from now on, at first, after each gap and when a machine comes or goes: list the sessions anew in it. Changes wait until
 * its promise is settled.
 */
interface SessionsFollower {
	onChanged: (event: SessionChange) => void
	onFresh: () => unknown
	onQuestion?: (event: {question?: Question; id: string}) => void
	onError?: (error: CallError) => void
}

/** `isMain`: it decides the state of the connection. `request`: where it resumes, asked for each time it is opened. */
interface StreamFollower {
	isMain: boolean
	request: () => {path: string; headers: Record<string, string>}
	// biome-ignore lint/suspicious/noExplicitAny: the data of any event.
	onEvent: (name: string, data: any) => unknown
	onError?: (error: CallError) => void
}

interface ServerEvent {
	name: string
	data: string
}

/** For tests: other ways to ask and to keep, another daemon, another patience. */
interface ClientOptions {
	fetch?: typeof globalThis.fetch
	storage?: Pick<Storage, "getItem" | "setItem" | "removeItem">
	base?: string
	awayMs?: number
}

/** A result message, as the line of its tool call shows it. */
interface ToolResult {
	callId: string
	name: string
	text: string
	isError: boolean
}

/** Who speaks, and as one word for people. `from`: the session that caused it. */
interface Speaker {
	who: "user" | "session" | "assistant" | "system" | "other"
	word: string
	from?: string
}

/** `at`: when it was asked for. `isLive`: it runs just now. */
interface Call {
	id: string
	name: string
	args: unknown
	at: number | null
	result: Entry | undefined
	isLive: boolean
}

type ImagePart = Extract<Part, {kind: "image"}>

/** What a message can ask of the page. `raw`: the line of the file. `whole`: fetches what was too large. */
interface MessageActions {
	linkTo: (key: string, props?: Props) => HTMLElement
	raw: (piece: MessagePiece) => Promise<string>
	whole: (piece: MessagePiece) => void
}

interface BodyItem {
	key: string
	version: string
	build: () => HTMLElement
	// biome-ignore lint/suspicious/noExplicitAny: the element that `build` made.
	update?: (node: any) => void
}

/** How children are kept in step. `version`: what has to change before `update` is asked. */
interface Keeping<T> {
	key: (item: T) => string
	version: (item: T) => string
	build: (item: T) => HTMLElement
	// biome-ignore lint/suspicious/noExplicitAny: the element that `build` made.
	update: (node: any, item: T) => void
}

type Kept = {node: HTMLElement; version: string}

type Item = {key: string; row: Row}

/** A line of the search. */
interface Found {
	key: string
	cursor?: string
	parts: (Node | string | null)[]
}

/** A session with all that is below it. `urgency` and `newest`: of all of them. */
interface Branch {
	key: string
	row: Row
	children: Branch[]
	newest: number
	urgency: number
	failed: number
	below: number
}

type Group = {id: string; name: string; detail?: string; roots: Branch[]}

/** `folded`, `opened`: the ids of lines that a person folded or opened. */
interface TreeOptions {
	by: Grouping
	filter?: string
	folded?: Set<string>
	opened?: Set<string>
}

interface Folding {
	folded: Set<string>
	opened: Set<string>
	all: boolean
	placed: (row: Row) => string
}

/** How a row of the tree looks. */
type Look = {now: number; isUnread: boolean; isSelected: boolean}

/** The key, what it does, and the doing; without it another part heeds the key. */
type Shortcut = [key: string, what: string, act?: () => unknown]

type SessionChange = {sessionKey: string; phase: string; reason?: string; row?: Row}
type ListAnswer = {sessions: Row[]; hasMore?: boolean; nextCursor?: string}
type ListPage = {rows: Row[]; next: string | null}

/** Runs the work once, soon. */
type Schedule = (work: () => void) => void
type Requester = (path: string, headers: Record<string, string>, signal: AbortSignal) => Promise<Response>

type CallError = import("./call-error.js").CallError
type Client = import("./client.js").Client
type PageContext = import("./page.js").PageContext
type SessionTree = import("./session-tree.js").SessionTree
type SessionList = import("./session-list.js").SessionList
type SessionRows = import("./session-list.js").SessionRows
type ReadingMarks = import("./reading-marks.js").ReadingMarks
type TranscriptWindow = import("./transcript-window.js").TranscriptWindow
