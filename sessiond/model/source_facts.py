"""What an entry knows of a session of another program, besides what it knows of every session."""

from __future__ import annotations

import msgspec

from sessiond.model.lax import Count
from sessiond.model.line_facts import FIRST_WORDS


class FoundFacts(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """What is known of a session before its file is read: from where the file lies, and from files beside it.

    `parent` is the native id of the session whose sub-agent it is. `key` is its key, where that is not made of its id.
    """

    key: str | None = None
    parent: str | None = None
    cwd: str | None = None
    title: str | None = None


class OpenMessage(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The newest message of a transcript, to which later lines with its id belong: the offset of its first line, its
    number in the session, and how many lines it has so far.
    """

    id: str
    begin: Count
    seq: Count
    parts: Count


class SourceFacts(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """A session of the program `name` (`claude`, `codex`..., or `machine`). `forked_from` is a native id.

    `opened` is the newest message if later lines may belong to it. What may be a
    repetition of usage does not count behind `usage_records_from` (an offset).
    `titles_of` are titles that count when a line with that id comes, `last_id` is the id of the newest line with
    one. `unknown` counts lines by types that the dialect does not know. `partial`: only the ends of the file were
    read. `keys` are hashes of the newest messages' keys, where lines change a list of messages
    (`model.message_list`). `tail_begin` is where the last line that was folded begins, and `tail_check` its
    checksum: programs may write a file anew in place.
    """

    name: str
    found: FoundFacts = FoundFacts()
    title: str | None = None
    title_rank: int = FIRST_WORDS
    forked_from: str | None = None
    opened: OpenMessage | None = None
    usage_records_from: Count | None = None
    last_id: str | None = None
    titles_of: dict[str, str] = {}
    unknown: dict[str, Count] = {}
    markers: Count = 0
    partial: bool = False
    keys: bytes = b""
    tail_begin: Count = 0
    tail_check: Count = 0
