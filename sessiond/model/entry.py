"""The entry of a session: what is known without reading its transcript. Only the types; `fold.py` computes them.

Source: store.md, "The index".
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from sessiond.machine_names import MACHINE_NAME
from sessiond.model.keys import CanonicalKey, ForeignKey
from sessiond.model.lax import Amount, Count, Milliseconds
from sessiond.model.source_facts import SourceFacts
from sessiond.model.usage_rows import UsageFacts

# At most so many runs of a session are accepted and not ended: more than anybody waits for, and few enough to end all
# of them at once.
MAX_ACCEPTED_RUNS = 1000
# An entry keeps twice as many, because another program may have written as many into the file.
MAX_OPEN_RUNS = 2 * MAX_ACCEPTED_RUNS

# At most so many questions of a session are open: more than anybody reads.
MAX_OPEN_QUESTIONS = 100
# As above: another program may have written as many.
MAX_QUESTION_REFS = 2 * MAX_OPEN_QUESTIONS
# Beside the open ones an entry keeps so many questions that were closed, the newest.
MAX_CLOSED_QUESTIONS = 20

# A run id is also part of file names. Those of the daemon are `<session id>.<16 hex digits>`.
RunId = Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z][0-9A-Za-z._-]{0,150}$")]

# A session or an agent on another machine: `mars/agent:ops:main`, `mars/ops`.
Target = Annotated[str, msgspec.Meta(pattern=rf"^{MACHINE_NAME.pattern}/.+", max_length=512)]


class Spawn(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """What the records of a child say about its spawn. Values of other types are dropped, whoever wrote them.

    `ended` is the run whose end is announced, `announced` the result of the announcement. `attachments` is the receipt
    of its files. `resumed` is the session of the agent's program that it was told to go on with.
    """

    mode: str | None = None
    cleanup: str | None = None
    requester_key: CanonicalKey | None = None
    attachments: dict[str, Any] | None = None
    mount_path: str | None = None
    resumed: str | None = None
    ended: RunId | None = None
    announced: str | None = None
    attachments_removed: bool = False
    attachments_missing: bool = False


class FileFacts(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Which file the fold has read, and how far. `folded_to` is the offset behind the last whole line.

    `bytes` is the size of the file then; 0 as long as it is read from its start and the end is not reached yet.
    `check` is a checksum of the bytes before `folded_to`, by which a rewritten file is noticed. `passed_to` is how far
    an unfinished line over the size limit was read already, else 0. `fold` is the version of the fold that read it.
    `had_messages` is the largest number of messages before another program rewrote the file, last at `rewritten_at`
    (milliseconds since 1970), 0 where none did. Both are lost with the index, since the file does not have them.
    """

    bytes: Count = 0
    mtime_ns: int = 0
    inode: int = 0
    folded_to: Count = 0
    last_id: str | None = None
    check: int = 0
    passed_to: Count = 0
    fold: int = 0
    had_messages: Count = 0
    rewritten_at: Milliseconds = 0


class LiveRun(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """A run that has not ended. `offset` is that of its accepted record. An `aside` run (the announce step of a child)
    does not change the status in the session's row.
    """

    run_id: RunId
    offset: Count
    accepted_at: Milliseconds = 0
    started_at: Milliseconds | None = None
    aside: bool = False


class KeyedRun(msgspec.Struct, frozen=True, rename="camel", gc=False, array_like=True):
    """A used idempotency key: `[key, runId, hash of the payload]`."""

    key: str
    run_id: str
    payload: str


class ConversationRef(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """An open conversation, which goes on after a run: reply-back, delivery. `offset` is that of its opening record.

    The records call a conversation a talk.
    """

    talk_id: RunId
    offset: Count


class HookFact(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The last hook of a program that was called, and the offset of its record."""

    event: str
    at: Milliseconds
    offset: Count


class QuestionRef(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """A question and the offset of its record. `closed` is that of the record which closed it, unless it is open."""

    id: str
    offset: Count
    asked_at: Milliseconds
    title: str
    run_id: RunId | None = None
    expires_at: Milliseconds | None = None
    closed: Count | None = None


class Entry(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """What is known of a session; times are milliseconds since 1970. Unset fields are absent on disk.

    `is_named_otherwise` says that the id in the header is not that of the file name, `is_copy` that the header has a
    key as well: the daemon names a file by the id in its header, so this one is a copy. `title` are the first words
    that a person typed, `task` those of the session that began this one. `source` is None for our own sessions; of
    others it has the title. `keeps_cwd`: the session was made for the folder `cwd`, which is not the agent's workspace.
    `native_required`: the agent has to go on with the session `native_session_id` and no other; `native_cost_usd` is
    what the agent says that one has cost. `disorder_ms` is how far the time of a message lies behind that of the newest
    before it at most, 0 where all are in order of time. `questions` are the open ones and the newest that were closed,
    as they were asked. `target` is what its messages go to on another machine. `notify`: its owner wants to be told
    when a run of it ends. `attends`: it holds what another program's session of that key asks and says, and has no row
    of its own; `hook` is what that program did last.
    """

    session_id: str
    session_key: str = ""
    updated_at: Milliseconds = 0
    created_at: Milliseconds = 0
    disorder_ms: Milliseconds = 0
    is_named_otherwise: bool = False
    is_copy: bool = False
    cwd: str | None = None
    channel: str | None = None
    group_id: str | None = None
    chat_type: str | None = None
    display_name: str | None = None
    title: str | None = None
    task: str | None = None
    subject: str | None = None
    last_channel: str | None = None
    last_to: str | None = None
    last_account_id: str | None = None
    delivery_context: dict[str, Any] | None = None
    model: str | None = None
    model_provider: str | None = None
    model_override: str | None = None
    thinking_level: str | None = None
    verbose_level: str | None = None
    system_sent: bool | None = None
    aborted_last_run: bool | None = None
    send_policy: str | None = None
    label: str | None = None
    spawned_by: str | None = None
    spawn_depth: Count | None = None
    sandboxed: bool | None = None
    spawn: Spawn | None = None
    native_session_id: str | None = None
    native_required: bool = False
    native_cost_usd: Amount | None = None
    continues: ForeignKey | None = None
    target: Target | None = None
    keeps_cwd: bool | None = None
    notify: bool | None = None
    attends: ForeignKey | None = None
    inbox_cursor: str | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    total_tokens: Count | None = None
    cache_read: Count | None = None
    cache_write: Count | None = None
    context_tokens: Count | None = None
    estimated_cost_usd: Amount | None = None
    usage: UsageFacts | None = None
    status: str | None = None
    started_at: Milliseconds | None = None
    ended_at: Milliseconds | None = None
    runtime_ms: Milliseconds | None = None
    message_count: Count = 0
    corrupt_records: Count = 0
    runs: tuple[LiveRun, ...] = ()
    keyed: tuple[KeyedRun, ...] = ()
    talks: tuple[ConversationRef, ...] = ()
    questions: tuple[QuestionRef, ...] = ()
    hook: HookFact | None = None
    source: SourceFacts | None = None
    file: FileFacts = FileFacts()

    @property
    def known_key(self) -> str:
        """The key under which the session is known: its own, or that of the session which it attends."""
        return self.attends or self.session_key

    @property
    def own_folder(self) -> str | None:
        """The absolute path of the folder in which its runs start; None: the agent's workspace."""
        is_chosen = self.keeps_cwd is True or self.continues is not None
        return self.cwd if is_chosen and self.cwd is not None and self.cwd.startswith("/") else None

    @property
    def own_native_id(self) -> str | None:
        """The id of the agent program's session that is shown as this one: not that which the child only goes on with,
        which has a past of its own.
        """
        resumed = self.spawn.resumed if self.spawn is not None else None
        return self.native_session_id if self.native_session_id != resumed else None

    @property
    def open_questions(self) -> list[QuestionRef]:
        """The questions that nobody has answered yet, oldest first."""
        return [ref for ref in self.questions if ref.closed is None]

    @property
    def is_incomplete(self) -> bool:
        """Whether it has only the beginning of a file that is being read from its start, as after it was replaced."""
        return self.file.bytes < self.file.folded_to

    @property
    def is_plausible(self) -> bool:
        """Whether the offsets in the entry can be right. For entries read from an index."""
        facts = self.file
        if self.usage is not None and not self.usage.is_plausible:
            return False
        if not self.runs and not self.talks and not self.questions:
            return facts.folded_to <= facts.bytes
        if len(self.runs) > MAX_OPEN_RUNS or len(self.questions) > MAX_QUESTION_REFS + MAX_CLOSED_QUESTIONS:
            return False
        offsets = [*(run.offset for run in self.runs), *(talk.offset for talk in self.talks)]
        offsets += [ref.offset for ref in self.questions]
        offsets += [ref.closed for ref in self.questions if ref.closed is not None]
        return facts.folded_to <= facts.bytes and all(offset < facts.folded_to for offset in offsets)
