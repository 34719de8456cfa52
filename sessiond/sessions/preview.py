"""Preview of a session: a title from its first message, the beginning of its last message, its last few messages.

Reads only the first and last blocks of a transcript. Source: protocol.md, "The gateway's calls".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from sessiond.clock import iso_ms
from sessiond.model.dialects import TranscriptDialect
from sessiond.model.entry import Entry
from sessiond.model.message import text_of
from sessiond.model.record import TOOL_ROLES, Record
from sessiond.model.row import encode_texts
from sessiond.store import transcript
from sessiond.store.catalog import CurrentTexts, Session
from sessiond.store.joining import read_joined_backwards
from sessiond.store.listing import MessageListing
from sessiond.store.store import SessionStore
from sessiond.store.transcript import Line

_TITLE_BYTES = 8192
_TITLE_CHARS = 60
# How far back the last messages are searched: lines per wanted message, and bytes.
_PREVIEW_LINES = 20
_PREVIEW_BYTES = 4 * 2**20
# Longer texts are cut to this before they are masked: some thirty times what is shown at most.
_MASKED_CHARS = 64 * 1024

Shown = Callable[[str], str]


class PreviewItem(msgspec.Struct, frozen=True):
    """One line of a preview."""

    role: Annotated[str, Meta(description="The role of the message.")]
    text: Annotated[str, Meta(description="The text of the message, shortened.")]


class _Wanted(msgspec.Struct, frozen=True):
    limit: int
    max_chars: int
    shown: Shown


async def previews(store: SessionStore, sessions: Sequence[Session], *, shown: Shown | None) -> list[CurrentTexts]:
    """The title and the last message of each session, one line each. `shown` masks a text as needed for the caller.

    `shown` None: no masking; then the result is cached until the session changes. If a transcript cannot be read, its
    title is taken from its entry.
    """
    entries = [session.entry for session in sessions]
    kept = [_current(session) if shown is None else None for session in sessions]
    if all(kept):
        return [preview for preview in kept if preview is not None]
    unknown = [session for session, preview in zip(sessions, kept, strict=True) if preview is None]
    show = shown or _identity
    read = iter(await store.read_each(unknown, _read, store.record_limit, show) if unknown else ())
    found = []
    for session, entry, preview in zip(sessions, entries, kept, strict=True):
        if preview is None:
            texts = next(read)
            first, last = texts or (None, None)
            title, last = _title(entry, first, show), short(last, 120) if last else None
            preview = CurrentTexts(entry, title, last, encode_texts(title, last))
            if shown is None and texts is not None:
                session.activity.texts = preview
        found.append(preview)
    return found


def _current(session: Session) -> CurrentTexts | None:
    texts = session.activity.texts
    return texts if texts is not None and texts.entry is session.entry else None


def _identity(text: str) -> str:
    return text


async def items(
    store: SessionStore, session: Session, *, limit: int, max_chars: int, shown: Shown
) -> list[PreviewItem]:
    """The last `limit` messages with text, oldest first, each masked by `shown` and cut to `max_chars`."""
    end = session.entry.file.folded_to
    wanted = _Wanted(limit, max_chars, shown)
    found: list[PreviewItem] = await store.read(session, _last_items, end, store.record_limit, wanted, session.dialect)
    return found


def _read(
    fd: int, end: int, dialect: TranscriptDialect, record_limit: int, shown: Shown
) -> tuple[str | None, str | None]:
    first = None
    stop = min(end, _TITLE_BYTES)
    for line in transcript.read_lines(fd, 0, record_limit, stop=stop, block=_TITLE_BYTES, dialect=dialect):
        if line.record is not None and line.record.role == "user" and not _from_another_session(line.record):
            first = text_of(line.record.message or b"{}")
            break
    newest = _last_items(fd, end, record_limit, _Wanted(1, 400, shown), dialect)
    return first, newest[-1].text if newest else None


def _last_items(fd: int, end: int, record_limit: int, wanted: _Wanted, dialect: TranscriptDialect) -> list[PreviewItem]:
    found: list[PreviewItem] = []
    for seen, line in enumerate(_lines_backwards(fd, end, record_limit, dialect)):
        if len(found) == wanted.limit or seen >= wanted.limit * _PREVIEW_LINES or end - line.end > _PREVIEW_BYTES:
            break
        record = line.record
        if record is None or record.message is None or record.role in TOOL_ROLES:
            continue
        text = text_of(record.message)
        if text.strip():
            found.append(
                PreviewItem(record.role or "other", short(wanted.shown(_cut_beginning(text)), wanted.max_chars))
            )
    found.reverse()
    return found


def _lines_backwards(fd: int, end: int, record_limit: int, dialect: TranscriptDialect) -> Iterator[Line]:
    if dialect.lists:
        listing = MessageListing(fd, end, record_limit, dialect)
        return listing.read_backwards(len(listing.messages))
    if dialect.joins:
        return read_joined_backwards(fd, end, record_limit, dialect=dialect, stop=end)
    return transcript.read_backwards(fd, end, record_limit, dialect=dialect)


def _from_another_session(record: Record) -> bool:
    return record.message is not None and b'"inter_session"' in record.message


def _title(entry: Entry, first: str | None, shown: Shown) -> str:
    known = entry.source.title if entry.source is not None else None
    for text in (entry.display_name, entry.subject, known, first):
        if text and text.strip():
            # Masked before the cut: a secret that was cut in two is not recognized.
            return short(shown(_cut_beginning(text)), _TITLE_CHARS)
    day = f" ({iso_ms(entry.updated_at)[:10]})" if entry.updated_at else ""
    return entry.session_id[:8] + day


def _cut_beginning(text: str) -> str:
    if len(text) <= _MASKED_CHARS:
        return text
    head = text[:_MASKED_CHARS]
    # Cut between words, so that no secret is cut in two.
    return head[: max(head.rfind(" "), head.rfind("\n"))]


def short(text: str, most: int) -> str:
    """The text on one line of at most `most` characters, cut between words if that keeps at least 60 % of it."""
    text = " ".join(text.split())
    if len(text) <= most:
        return text
    cut = text[: most - 1]
    space = cut.rfind(" ")
    return (cut[:space] if space > most * 0.6 else cut) + "…"
