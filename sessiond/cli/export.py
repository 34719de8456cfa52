"""`sessiond export`: a session as one file, to read, print or give away."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

from sessiond import errors
from sessiond.cli.documents import json_lines, markdown, web_page
from sessiond.cli.documents.output_file import open_output
from sessiond.cli.documents.session_text import encode, local_time, write_session
from sessiond.cli.frame.command import SOCKET, Args, Argument, Command, Option
from sessiond.cli.frame.daemon import CALL_TIMEOUT_S, connect
from sessiond.cli.frame.failures import FAILED, USAGE, CommandFailed, note
from sessiond.cli.terminal.times import quantity
from sessiond.errors import pluralize
from sessiond.ranges import LIST_LIMIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from sessiond.cli.documents.forms import Form
    from sessiond.cli.documents.session_text import Mask
    from sessiond.client.blocking import Client

# By option, and by the end of a file's name.
FORMS: dict[str, Form] = {"md": markdown, "html": web_page, "json": json_lines}
_ENDINGS = {
    **dict.fromkeys(("", "md", "markdown", "txt"), "md"),
    **dict.fromkeys(("html", "htm"), "html"),
    **dict.fromkeys(("jsonl", "ndjson"), "json"),
}
_FACTS = {
    "key": "session",
    "source": "program",
    "machine": "machine",
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
    form = FORMS[_form_name(args)]
    mask = _no_mask if args.raw else _mask_of_configuration()
    with connect(args) as client, open_output(args.output) as out:
        row = _row(client, args.key)
        sessions = [row, *(_descendants(client, row["key"]) if args.with_children else ())]
        count, redacted = 0, False
        for number, each in enumerate(map(mask, sessions)):
            out.write(encode(_head(form, each, is_first=number == 0)))
            # An archived session has the key of another one; one of another machine may have the id of one here.
            name = each["key"] if each.get("machine") else each["sessionId"]
            found, hidden = write_session(client, name, form, mask, out)
            count, redacted = count + found, redacted or hidden
        counted = pluralize(count, "message")
        if not form.is_data:
            out.write(encode(form.foot([f"{counted}, exported by sessiond"])))
    if args.output and args.output != "-":
        note(f"{args.output}: {counted}")
    if redacted:
        note("secrets are masked for this caller")
    return None


def _head(form: Form, row: dict[str, Any], *, is_first: bool) -> str:
    if form.is_data:
        return form.head(row)
    return form.head(_title(row), _facts(row)) if is_first else form.session_head(_title(row))


def _form_name(args: Args) -> str:
    asked = [name for name in FORMS if getattr(args, name)]
    if len(asked) > 1:
        raise CommandFailed(f"--{asked[0]} and --{asked[1]} exclude each other: one file has one form", status=USAGE)
    ending = Path(args.output or "").suffix.lstrip(".").lower()
    if asked:
        return asked[0]
    if ending not in _ENDINGS:
        raise CommandFailed(
            f"{args.output} ends in .{ending}, which is none of .md, .html and .jsonl",
            hint="say which form it is to have: --md, --html or --jsonl",
            status=USAGE,
        )
    return _ENDINGS[ending]


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


def _title(row: dict[str, Any]) -> str:
    return str(row.get("label") or row.get("title") or row["key"])


def _facts(row: dict[str, Any]) -> list[tuple[str, str]]:
    shown = {name: row[name] for name in _FACTS if row.get(name) not in (None, "")}
    if "machine" in shown:
        del shown["source"]  # says no more
    for name in ("createdAt", "updatedAt"):
        if isinstance(shown.get(name), int):
            shown[name] = local_time(shown[name])
    for name in ("inputTokens", "outputTokens"):
        if name in shown:
            shown[name] = quantity(shown[name])
    return [(_FACTS[name], str(value)) for name, value in shown.items()]


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


COMMAND = Command(
    "export",
    "Write a session as one file: Markdown, a web page or JSON lines.",
    run=run,
    description="The page has no script and asks for nothing; tool calls are folded. Secrets are masked unless --raw.",
    arguments=(Argument("key", "A session key, `main`, a session id, or the beginning of one.", complete="key"),),
    options=(
        Option("--md", "Markdown (the default, unless FILE ends otherwise).", kind="flag"),
        Option("--html", "A page for a browser or for paper.", kind="flag"),
        Option("--json --jsonl", "The session's row, then a message a line.", kind="flag"),
        Option("--output -o", "Write into this file, which appears when it is whole.", metavar="FILE", complete="file"),
        Option("--with-children", "Its sub-agents, too.", kind="flag"),
        Option("--raw", "Secrets as they are.", kind="flag"),
        SOCKET,
    ),
    examples=(
        "sessiond export main -o main.html",
        "sessiond export claude:1a2b3c4d | less",
        "sessiond export main --jsonl | jq -r '.message.role? // empty'",
    ),
)
