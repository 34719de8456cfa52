"""`sessiond export`: a session as one file, to read, print or give away."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import sys
import tempfile
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from sessiond import errors
from sessiond.cli.documents import contents, markdown, web_page
from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Argument, Command, Option
from sessiond.cli.frame.daemon import CALL_TIMEOUT_S, connect
from sessiond.cli.frame.failures import FAILED, USAGE, CommandFailed, note
from sessiond.cli.frame.question_facts import question_facts
from sessiond.cli.terminal.message import moment_of
from sessiond.cli.terminal.question import QuestionFact, take_facts
from sessiond.cli.terminal.times import clock, quantity
from sessiond.cli.terminal.transcript import MARKERS, RUN_ENDS
from sessiond.errors import pluralize
from sessiond.ranges import HISTORY_BYTES, HISTORY_LIMIT, LIST_LIMIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any, BinaryIO

    from sessiond.client.blocking import Client

    Mask = Callable[[dict[str, Any]], dict[str, Any]]

FORMATS: dict[str, ModuleType | None] = {"md": markdown, "html": web_page, "jsonl": None}
_ENDINGS = {"": "md", "markdown": "md", "txt": "md", "htm": "html", "ndjson": "jsonl"}
_FACTS = {
    "key": "session",
    "source": "program",
    "nativeId": "its id",
    "cwd": "folder",
    "model": "model",
    "createdAt": "begun",
    "updatedAt": "last message",
    "messageCount": "messages",
    "inputTokens": "tokens in",
    "outputTokens": "tokens out",
    "spawnedBy": "spawned by",
    "transcriptPath": "file",
}


def run(args: Args) -> int | None:
    form = _format(args)
    mask = _no_mask if args.raw else _mask_of_configuration()
    with connect(args) as client, _open_output(args.output) as out:
        row = _row(client, args.key)
        sessions = [row, *(_descendants(client, row["key"]) if args.with_children else ())]
        shows = FORMATS[form]
        count, redacted = 0, False
        for number, each in enumerate(map(mask, sessions)):
            out.write(_encode(_head(shows, each, is_first=number == 0)))
            found, hidden = _write_messages(client, each["sessionId"], form, mask, out)
            count, redacted = count + found, redacted or hidden
        notes = [f"{pluralize(count, 'message')}, exported by sessiond"]
        if shows is not None:
            out.write(_encode(shows.foot(notes)))
    if args.output:
        note(f"{args.output}: {notes[0].removesuffix(', exported by sessiond')}")
    if redacted:
        note("secrets are masked for this caller")
    return None


def _head(shows: ModuleType | None, row: dict[str, Any], *, is_first: bool) -> str:
    if shows is None:
        return _line({"session": row})
    head: str = shows.head(_title(row), _facts(row)) if is_first else shows.session_head(_title(row))
    return head


def _format(args: Args) -> str:
    asked = [name for name in FORMATS if getattr(args, name)]
    if len(asked) > 1:
        raise CommandFailed(f"--{asked[0]} and --{asked[1]} exclude each other: one file has one form", status=USAGE)
    ending = Path(args.output or "").suffix.lstrip(".").lower()
    if asked:
        return asked[0]
    form = _ENDINGS.get(ending, ending)
    if form not in FORMATS:
        raise CommandFailed(
            f"{args.output} ends in .{ending}, which is none of .md, .html and .jsonl",
            hint="say which form it is to have: --md, --html or --jsonl",
            status=USAGE,
        )
    return form


def _row(client: Client, key: str) -> dict[str, Any]:
    found = client.call("sessions.resolve", key=key, timeout_s=CALL_TIMEOUT_S)
    asked = {"search": found["sessionId"], "includeArchived": True, "limit": LIST_LIMIT.most}
    rows = client.call("sessions_list", asked, timeout_s=CALL_TIMEOUT_S)["sessions"]
    same = [row for row in rows if row["sessionId"] == found["sessionId"]]
    row: dict[str, Any] = next((row for row in same if row["key"] == found["key"]), same[0])
    return row


def _descendants(client: Client, key: str) -> Iterator[dict[str, Any]]:
    """The rows of the sub-agents, each followed by its own."""
    seen, waiting = {key}, [key]
    while waiting:
        rows = [row for row in _children(client, waiting.pop()) if row["sessionId"] not in seen]
        for row in reversed(rows):  # the oldest first
            seen.add(row["sessionId"])
            yield row
        waiting += [row["key"] for row in rows if not row.get("archived")]


def _children(client: Client, key: str) -> Iterator[dict[str, Any]]:
    asked = {"spawnedBy": key, "includeArchived": True, "limit": LIST_LIMIT.most}
    while True:
        page = client.call("sessions_list", asked, timeout_s=CALL_TIMEOUT_S)
        yield from page["sessions"]
        if not page.get("nextCursor"):
            return
        asked = {**asked, "cursor": page["nextCursor"]}


def _write_messages(client: Client, session: str, form: str, mask: Mask, out: BinaryIO) -> tuple[int, bool]:
    """Write all messages, oldest first; how many, and whether the daemon masked some.

    Pages come newest first, so each is kept as text in a temporary file until the oldest is there.
    """
    params = {"sessionKey": session, "limit": HISTORY_LIMIT.most, "maxBytes": HISTORY_BYTES.most}
    params |= {"includeTools": True, "includeRuns": True}
    facts = [] if form == "jsonl" else question_facts(client, session, session, mask)
    count, redacted, ends = 0, False, [0]
    with tempfile.TemporaryFile() as spool:
        while True:
            page = client.call("sessions_history", params, timeout_s=CALL_TIMEOUT_S)
            is_oldest = not page["hasMore"] or not page.get("nextCursor")
            asked = [] if form == "jsonl" else _facts_of_page(facts, page, is_oldest=is_oldest)
            for text in _messages(page, form, mask, asked):
                spool.write(_encode(text))
            ends.append(spool.tell())
            count, redacted = count + len(page["messages"]), redacted or bool(page.get("contentRedacted"))
            if is_oldest:
                break
            params = {**params, "cursor": page["nextCursor"]}
        for begin, end in reversed(list(itertools.pairwise(ends))):
            spool.seek(begin)
            out.write(spool.read(end - begin))
    return count, redacted


def _facts_of_page(facts: list[QuestionFact], page: dict[str, Any], *, is_oldest: bool) -> list[QuestionFact]:
    """Those of `facts` that belong to a page, removed from there; pages come newest first."""
    moments = [moment_of(*one) for one in zip(page["messages"], page["positions"], strict=True)]
    if is_oldest or not moments or moments[0] is None:
        return take_facts(facts, None) if is_oldest else []
    older = take_facts(facts, moments[0] - 1)
    taken, facts[:] = list(facts), older
    return taken


def _messages(page: dict[str, Any], form: str, mask: Mask, facts: list[QuestionFact]) -> Iterator[str]:
    """The text of each message of a page, of the markers and of what was asked before it, and of the ends of runs
    without a reply.
    """
    files = {one["seq"]: one["files"] for one in page.get("attachments") or ()}
    between = sorted(
        [(marker["seq"], 0, marker) for marker in page.get("markers") or ()]
        + [(end["seq"] + 1, 1, end) for end in page.get("runs") or ()],
        key=lambda one: one[:2],
    )
    shows, calls = FORMATS[form], contents.names_of_calls(page["messages"])
    for message, place in zip(page["messages"], page["positions"], strict=True):
        while shows is not None and between and between[0][0] <= place["seq"]:
            yield from _entries_between(shows, between.pop(0)[2], mask)
        moment = moment_of(message, place)
        if shows is not None and moment is not None:
            yield from _fact_entries(shows, take_facts(facts, moment))
        shown = mask(message)
        if shows is None:
            yield _line({name: place.get(name) for name in ("seq", "id", "timestamp")} | {"message": shown})
        else:
            one = contents.message_entry(shown, place, files.get(place["seq"]) or (), calls)
            yield shows.message(one, _local_time(one.moment_ms))
    if shows is not None:
        for _, _, rest in between:
            yield from _entries_between(shows, rest, mask)
        yield from _fact_entries(shows, facts)


def _fact_entries(shows: ModuleType, facts: list[QuestionFact]) -> Iterator[str]:
    for fact in facts:
        one = contents.fact_entry(fact.who, fact.text, fact.moment_ms)
        yield shows.message(one, _local_time(one.moment_ms))


def _entries_between(shows: ModuleType, what: dict[str, Any], mask: Mask) -> Iterator[str]:
    if "kind" in what:
        text = MARKERS.get(what["kind"], what["kind"])
        one = contents.note_entry(text, what.get("timestamp"))
        yield shows.message(one, _local_time(one.moment_ms))
    else:
        end = contents.run_end_entry(mask(what), RUN_ENDS)
        if end is not None:
            yield shows.message(end, _local_time(end.moment_ms))


def _title(row: dict[str, Any]) -> str:
    return str(row.get("label") or row.get("title") or row["key"])


def _facts(row: dict[str, Any]) -> list[tuple[str, str]]:
    shown = {name: row[name] for name in _FACTS if row.get(name) not in (None, "")}
    for name in ("createdAt", "updatedAt"):
        if isinstance(shown.get(name), int):
            shown[name] = _local_time(shown[name])
    for name in ("inputTokens", "outputTokens"):
        if name in shown:
            shown[name] = quantity(shown[name])
    return [(_FACTS[name], str(value)) for name, value in shown.items()]


def _local_time(moment_ms: int | None) -> str:
    """The local date and time."""
    if moment_ms is None:
        return "no time"
    # With a present far away the date is always said.
    return clock(moment_ms, moment_ms + 400 * 86_400_000)


def _no_mask(value: dict[str, Any]) -> dict[str, Any]:
    return value


def _mask_of_configuration() -> Mask:
    """Masks what the daemon masks for tokens: known forms of secrets, and the owner's own patterns."""
    redact = import_module("sessiond.policy.redact")  # imported late, because it imports msgspec
    settings = import_module("sessiond.config.settings")
    given = os.environ.get("SESSIOND_CONFIG")
    try:
        config = settings.load(Path(given).expanduser() if given else None)
    except errors.ConfigError as error:
        raise CommandFailed(
            f"secrets cannot be masked, because the configuration has an error: {error}",
            hint="mend it (sessiond config check), or export with --raw",
            status=FAILED,
        ) from None
    patterns = redact.compile_patterns(config.tools.sessions.redact_patterns)

    def mask(value: dict[str, Any]) -> dict[str, Any]:
        masked: dict[str, Any] = redact.mask_value(value, patterns)
        return masked

    return mask


def _line(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"


def _encode(text: str) -> bytes:
    # A lone surrogate, which only JSON lines may still have, as its JSON escape.
    return text.encode("utf-8", "backslashreplace")


@contextmanager
def _open_output(path: str | None) -> Iterator[BinaryIO]:
    """Standard output, or a file that appears under its name only when it is whole."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    target = Path(path)
    beside = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}")
    try:
        if target.is_dir():
            raise IsADirectoryError(None, "it is a folder")
        with beside.open("xb") as file:
            yield file
        beside.replace(target)
    except OSError as error:
        raise CommandFailed(f"{target} cannot be written: {errors.reason_of(error)}", status=FAILED) from None
    finally:
        beside.unlink(missing_ok=True)


COMMAND = Command(
    "export",
    "Write a session as one file: Markdown, a web page or JSON lines.",
    run=run,
    description="The page has no script and asks for nothing; tool calls are folded. Secrets are masked unless --raw.",
    arguments=(Argument("key", "A session key, `main`, a session id, or the beginning of one.", complete="key"),),
    options=(
        Option("--md", "Markdown (the default, unless FILE ends otherwise).", kind="flag"),
        Option("--html", "A page for a browser or for paper.", kind="flag"),
        Option("--jsonl", "The session's row, then a message a line.", kind="flag"),
        Option("--output -o", "Write into this file.", metavar="FILE", complete="file"),
        Option("--with-children", "Its sub-agents, too.", kind="flag"),
        Option("--raw", "Secrets as they are.", kind="flag"),
        *CLIENT_OPTIONS,
    ),
    examples=(
        "sessiond export main -o main.html",
        "sessiond export claude:1a2b3c4d | less",
        "sessiond export main --jsonl | jq -r '.message.role? // empty'",
    ),
)
