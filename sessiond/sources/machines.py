"""Replicas: transcripts of other machines, `<store>/machines/<machine>/agents/<agent>/sessions/<id>.jsonl`.

Another program of the same user writes them (`sessiond link`): each is a prefix of the original there, which may end
within a line, and is replaced where the original was. Nothing is written here.
"""

from __future__ import annotations

import os
from pathlib import Path

from sessiond.machine_names import MACHINE_NAME
from sessiond.model import lax
from sessiond.model.keys import AGENT_ID, MACHINE, key_elsewhere
from sessiond.model.record import ENTRY, BadLine, parse
from sessiond.model.source_facts import FoundFacts
from sessiond.sources.finder import SourceFinder, SourceRoot, compile_path
from sessiond.store import dirfd, layout
from sessiond.store.session import Session

# The key is in the header. Where another program wrote the transcript before it was adopted there, it is in the record
# of the adoption, which is looked for in so many bytes, and in so many records of its kind.
_HEAD_BYTES, _SEARCHED_BYTES, _MOST_RECORDS = 4 * 1024, 16 * 1024 * 1024, 100
_MARK = ENTRY.encode()


def _find_key(root_fd: int, place: str) -> FoundFacts:
    """The key of a session, as the first line of its transcript says; none until there is a whole line."""
    machine, _, agent_id, _, name = place.split("/")
    try:
        with dirfd.closing(dirfd.open_below(root_fd, place)) as fd:
            head = os.pread(fd, _HEAD_BYTES, 0)
            own = _key_of_line(head.partition(b"\n")[0], "session") if b"\n" in head else None
            if own is None:
                head = os.pread(fd, _SEARCHED_BYTES, 0)
    except (OSError, dirfd.BadComponent):
        return FoundFacts()  # reading it raises the same error, which is handled there
    end = head.find(b"\n")
    if end < 0:
        return FoundFacts()
    own = own or _key_of_line(head[:end], "session") or _adopted_key(head, end)
    # Where there is none yet it has the key that its own daemon gives a transcript that it finds.
    return FoundFacts(key=key_elsewhere(machine, own or _imported_key(agent_id, name.removesuffix(layout.SUFFIX))))


def _imported_key(agent_id: str, session_id: str) -> str:
    return f"agent:{agent_id}:import:{session_id.lower()}"


def is_provisional(session: Session) -> bool:
    """Whether the session may have another key, which is in what has not come yet."""
    agent_id = session.place.split("/")[2]
    return session.key.partition("/")[2] == _imported_key(agent_id, session.session_id)


def _adopted_key(head: bytes, end: int) -> str | None:
    """The key in the record that adopted a transcript without one, behind its first line."""
    key, at = None, head.find(_MARK, end)
    for _ in range(_MOST_RECORDS):
        if at < 0 or key is not None:
            break
        begin, end = head.rfind(b"\n", 0, at) + 1, head.find(b"\n", at)
        if end < 0:
            break
        key = _key_of_line(head[begin:end], "custom")
        at = head.find(_MARK, end)
    return key


def _key_of_line(line: bytes, kind: str) -> str | None:
    try:
        record = parse(line)
    except BadLine:
        return None
    if record.type != kind:
        return None
    body = record.body() if kind == "session" else lax.decode_dict(record.data) if record.custom_type == ENTRY else {}
    key = body.get("sessionKey")
    return key if type(key) is str and key_elsewhere("x", key) is not None else None


FINDER = SourceFinder(
    name=MACHINE,
    patterns=(
        compile_path(MACHINE_NAME.pattern, layout.AGENTS, AGENT_ID.pattern, layout.SESSIONS, r"(?P<id>[^.].*)\.jsonl"),
    ),
    facts_beside=_find_key,
    is_ours=True,
)


def find_root(store: Path) -> SourceRoot:
    """The folder of all machines. It need not be there."""
    return SourceRoot(store / layout.MACHINES, FINDER)
