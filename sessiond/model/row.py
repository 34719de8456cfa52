"""What sessions_list returns for a session. Source: protocol.md, "The agents' tools" (Row)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from sessiond.model.entry import Entry
from sessiond.model.keys import MACHINE, KeyRules, Kind, display_key, group_part, kind_of, machine_of
from sessiond.model.title import clean_title

State = Literal["running", "waiting", "done", "error", "aborted", "idle"]
# The state of a session whose last run ended so.
_STATES: dict[str | None, State] = {"ok": "done", "error": "error", "timeout": "error", "aborted": "aborted"}


class WaitingFacts(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a session waits for: answers of a person."""

    since: Annotated[int, Meta(description="When its oldest open question was asked, in milliseconds since 1970.")]
    questions: Annotated[int, Meta(description="How many of its questions are open.")]
    title: Annotated[str | None, Meta(description="The title of the oldest of them.")] = None


class Row(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One session; times are milliseconds since 1970. Fields that are not known are absent."""

    key: Annotated[
        str,
        Meta(description="The session's key as it is displayed: `main` for the main session of the caller's agent."),
    ]
    kind: Annotated[Kind, Meta(description="The kind of session, derived from its key.")]
    channel: Annotated[
        str,
        Meta(description="The channel it belongs to, or `internal`, or `unknown`."),
    ]
    source: Annotated[
        str,
        Meta(
            description="The program whose session it is: `sessiond` for its own, else `claude`, `codex` and so on;"
            " `machine` for those of another machine's sessiond."
        ),
    ]
    machine: Annotated[str | None, Meta(description="The other machine on which it is, by its name here.")] = None
    away_since: Annotated[
        int | None,
        Meta(
            description="Since when that machine is not reached, in milliseconds since 1970: then the row may be old."
        ),
    ] = None
    title: Annotated[
        str | None,
        Meta(description="What a person or the program called it, else the first words that a person typed."),
    ] = None
    task: Annotated[
        str | None, Meta(description="What it was begun for: the first words that another session wrote to it.")
    ] = None
    cwd: Annotated[str | None, Meta(description="The folder in which its agent works.")] = None
    native_id: Annotated[str | None, Meta(description="The id that the agent program gave it.")] = None
    read_only: Annotated[
        bool, Meta(description="Whether another program or machine keeps it: it is shown here and never changed.")
    ] = False
    partial: Annotated[
        bool,
        Meta(
            description="Whether only the ends of its file have been read so far, or its beginning after the file was"
            " replaced: then some fields are not known yet, and `messageCount` is absent."
        ),
    ] = False
    forked_from: Annotated[str | None, Meta(description="The canonical key of the session that it is a copy of.")] = (
        None
    )
    continues: Annotated[
        str | None,
        Meta(
            description="The key of another program's session that it goes on with, as a copy of it; or the address of"
            " the session on another machine to which its messages go."
        ),
    ] = None
    display_name: Annotated[str | None, Meta(description="The name that lists show.")] = None
    subject: Annotated[str | None, Meta(description="The subject of a group.")] = None
    label: Annotated[str | None, Meta(description="Its label, by which it can be named.")] = None
    updated_at: Annotated[int, Meta(description="The time of its newest message, in milliseconds since 1970.")]
    created_at: Annotated[int, Meta(description="When it was created, in milliseconds since 1970.")]
    session_id: Annotated[str, Meta(description="The id of its transcript.")]
    model: Annotated[str | None, Meta(description="Its model.")] = None
    model_provider: Annotated[str | None, Meta(description="The provider of the model.")] = None
    context_tokens: Annotated[int | None, Meta(description="The size of its context window in tokens.")] = None
    total_tokens: Annotated[int | None, Meta(description="How many tokens its context had at the last answer.")] = None
    input_tokens: Annotated[int | None, Meta(description="The sum of its input tokens.")] = None
    output_tokens: Annotated[int | None, Meta(description="The sum of its output tokens.")] = None
    estimated_cost_usd: Annotated[float | None, Meta(description="The cost of all tokens in US dollars.")] = None
    thinking_level: Annotated[str | None, Meta(description="Its thinking level.")] = None
    verbose_level: Annotated[str | None, Meta(description="Its verbosity: how much of its work the agent shows.")] = (
        None
    )
    system_sent: Annotated[bool | None, Meta(description="Whether the agent has had its system prompt.")] = None
    aborted_last_run: Annotated[bool | None, Meta(description="Whether its last run was aborted.")] = None
    send_policy: Annotated[str | None, Meta(description="Whether messages may be sent to it: `allow` or `deny`.")] = (
        None
    )
    last_channel: Annotated[str | None, Meta(description="The channel that it was written to from last.")] = None
    last_to: Annotated[str | None, Meta(description="The address on that channel.")] = None
    last_account_id: Annotated[str | None, Meta(description="The account on that channel.")] = None
    delivery_context: Annotated[dict[str, Any] | None, Meta(description="Its delivery target.")] = None
    status: Annotated[
        str | None, Meta(description="The status of its last run: queued, running, ok, error, timeout or aborted.")
    ] = None
    state: Annotated[
        State,
        Meta(
            description="What it does now: `running` (or queued), `waiting` for the answer to a question, else how its"
            " last run ended: `done`, `error` or `aborted`, `idle` if it had none."
        ),
    ]
    waiting: Annotated[WaitingFacts | None, Meta(description="What it waits for, while a question of it is open.")] = (
        None
    )
    notify: Annotated[bool | None, Meta(description="Whether its owner is told of the end of each of its runs.")] = None
    queued_runs: Annotated[int, Meta(description="How many accepted runs are queued.")] = 0
    started_at: Annotated[int | None, Meta(description="When its last run started, in milliseconds since 1970.")] = None
    ended_at: Annotated[int | None, Meta(description="When its last run ended, in milliseconds since 1970.")] = None
    runtime_ms: Annotated[int | None, Meta(description="How long its last run took, in milliseconds.")] = None
    spawned_by: Annotated[
        str | None, Meta(description="The canonical key of the session that spawned it, if the caller may see that.")
    ] = None
    spawn_depth: Annotated[int | None, Meta(description="Its depth in the tree of spawned sessions.")] = None
    sandboxed: Annotated[bool | None, Meta(description="Whether its runs are sandboxed.")] = None
    child_sessions: Annotated[
        list[str] | None,
        Meta(description="The canonical keys of its newest sub-agents that the caller may see, at most 100."),
    ] = None
    message_count: Annotated[int | None, Meta(description="How many messages it has, tool results included.")] = None
    corrupt_records: Annotated[int, Meta(description="How many lines of its transcript cannot be read.")] = 0
    transcript_path: Annotated[str, Meta(description="The path of its transcript.")]
    archived: Annotated[bool, Meta(description="Whether it is in the archive.")] = False
    derived_title: Annotated[str | None, Meta(description="A title, derived from its first message.")] = None
    last_message_preview: Annotated[str | None, Meta(description="The beginning of its last message.")] = None
    messages: Annotated[list[msgspec.Raw] | None, Meta(description="Its last messages, if requested.")] = None
    cursor: Annotated[str | None, Meta(description="A cursor: the place after its newest record, if requested.")] = None


class CachedRow(msgspec.Struct, gc=False):
    """A row, as it was asked for so far, and its inputs: while they are the same, the row is valid.

    Folder and place stand for the path. `parents` are the keys whose children it shows. `text` is the row as JSON.
    """

    entry: Entry
    folder: object
    place: str
    rules: KeyRules
    caller_agent: str | None
    archived: bool
    away_since: int | None
    parents: tuple[str, ...]
    row: Row | None = None
    text: msgspec.Raw | None = None


# The fields of the row that are copied from the entry.
_COPIED_FIELDS = tuple(
    name
    for name in Row.__struct_fields__
    if name in Entry.__struct_fields__ and name not in {"channel", "continues", "message_count", "source", "title"}
)
_encode = msgspec.json.Encoder().encode
# The `source` of our own sessions.
OWN_SOURCE = "sessiond"


def title_of(entry: Entry) -> str | None:
    """What a person or a program called the session, else the first words that a person typed."""
    if entry.source is not None:
        return entry.source.title
    return (clean_title(entry.display_name) if entry.display_name else None) or entry.title


def native_id_of(entry: Entry) -> str | None:
    """The id that the agent program gave the session."""
    if entry.source is not None and entry.source.name != MACHINE:
        return entry.session_id
    # The preset of Codex stores the id and what it has counted, separated by a space.
    return (entry.native_session_id or "").partition(" ")[0] or None


def state_of(entry: Entry) -> State:
    """What the session does now."""
    if entry.open_questions:
        return "waiting"
    if any(not run.aside for run in entry.runs):
        return "running"
    return _STATES.get(entry.status, "idle")


def waiting_of(entry: Entry) -> WaitingFacts | None:
    """What the session waits for, None where no question is open."""
    refs = entry.open_questions
    return WaitingFacts(since=refs[0].asked_at, questions=len(refs), title=refs[0].title) if refs else None


def with_texts(row: Row, *, titles: Callable[[str], str | None], names: Callable[[str], str]) -> Row:
    """The row with its texts as these give them: `titles` its title, its task and the title of its question, which are
    made of messages, `names` the names that it was given.
    """
    waiting = row.waiting
    if waiting is not None and waiting.title is not None:
        waiting = replace(waiting, title=titles(waiting.title))
    return replace(
        row,
        title=titles(row.title) if row.title is not None else None,
        task=titles(row.task) if row.task is not None else None,
        waiting=waiting,
        display_name=names(row.display_name) if row.display_name is not None else None,
        subject=names(row.subject) if row.subject is not None else None,
    )


def links_of(entry: Entry) -> dict[str, str]:
    """The fields of a row that name another session, and its key, as far as there is one."""
    links = {"spawned_by": entry.spawned_by, "continues": entry.continues, "forked_from": _original_of(entry)}
    return {name: key for name, key in links.items() if key}


def _original_of(entry: Entry) -> str | None:
    source = entry.source
    return f"{source.name}:{source.forked_from}" if source is not None and source.forked_from else None


def encode_texts(title: str, last: str | None) -> bytes:
    """The derived title and the preview of the last message as members of a row's JSON."""
    members = {"derivedTitle": title} if last is None else {"derivedTitle": title, "lastMessagePreview": last}
    return _encode(members)[1:-1]


def add_texts(row: msgspec.Raw, texts: bytes) -> msgspec.Raw:
    """An encoded row with the members that `encode_texts` made. They come last, as in a row that has them."""
    return msgspec.Raw(b"".join((memoryview(row)[:-1], b",", texts, b"}")))


def channel_of(key: str, kind: Kind, entry: Entry) -> str:
    """The channel of a session. Source: protocol.md, "Keys"."""
    if kind in ("cron", "hook", "node"):
        return "internal"
    group = group_part(key)
    if group is not None or kind == "group":
        return entry.channel or (group[0] if group is not None else None) or "unknown"
    delivery = entry.delivery_context or {}
    through = delivery.get("channel")
    return entry.last_channel or (through if isinstance(through, str) else None) or entry.channel or "unknown"


def row_of(
    key: str,
    entry: Entry,
    *,
    path: str,
    rules: KeyRules,
    caller_agent: str | None,
    children: list[str],
    archived: bool = False,
    away_since: int | None = None,
) -> Row:
    """The row of a session, as a caller of `caller_agent` sees it. `away_since`: its machine is not reached."""
    kind, source = kind_of(key, rules, entry.chat_type), entry.source
    partial = entry.is_incomplete or (source is not None and source.partial)
    return Row(
        key=display_key(key, rules, caller_agent),
        kind=kind,
        source=source.name if source is not None else OWN_SOURCE,
        title=title_of(entry),
        native_id=native_id_of(entry),
        machine=machine_of(key),
        away_since=away_since,
        read_only=source is not None,
        partial=partial,
        forked_from=_original_of(entry),
        channel=channel_of(key, kind, entry),
        state=state_of(entry),
        waiting=waiting_of(entry),
        queued_runs=sum(run.started_at is None for run in entry.runs),
        child_sessions=children or None,
        message_count=None if partial else entry.message_count,
        transcript_path=path,
        archived=archived,
        **{name: getattr(entry, name) for name in _COPIED_FIELDS},
        continues=entry.continues or (entry.target if entry.spawned_by is None else None),
    )
