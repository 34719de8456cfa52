"""A small dialect whose lines may be parts of one message: `{"kind", "id"?, "text"?, ...}`; and lines in it."""

from __future__ import annotations

from typing import Any

import msgspec

from sessiond.model.dialects.generic import foreign_dialect
from sessiond.model.entry import Entry
from sessiond.model.foreign_fold import begin_foreign
from sessiond.model.record import BadLine, Record
from sessiond.model.source_facts import SourceFacts

ROLES = {"part": "assistant", "user": "user", "tool": "toolResult"}


def parse(line: bytes) -> Record:
    """The record in a line: a message for the kinds in ROLES, none for any other."""
    try:
        body: Any = msgspec.json.decode(line)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise BadLine("torn or not JSON") from None
    if type(body) is not dict:
        raise BadLine("not an object")
    role = ROLES.get(body.get("kind", ""))
    if role is None:
        return Record("other", line)
    content = [{"type": "text", "text": body["text"]}]
    message = msgspec.json.encode({"role": role, "content": content, "timestamp": body["at"]})
    return Record(body["kind"], line, None, body["at"], role, message, message_id=body.get("id"))


JOINING = foreign_dialect("joining", parse, joins=True)


def line(kind: str, text: str = "", message_id: str | None = None, at: int = 1) -> bytes:
    """One line of the dialect."""
    body = {"kind": kind, "text": text, "at": at, **({"id": message_id} if message_id is not None else {})}
    return msgspec.json.encode(body) + b"\n"


def first_entry() -> Entry:
    """The entry of a session of which nothing was read."""
    return begin_foreign(SourceFacts(name="joining"), "native-1")


def texts_of(message: bytes | None) -> list[str]:
    """The texts of the blocks of a message."""
    assert message is not None
    return [block["text"] for block in msgspec.json.decode(message)["content"]]
