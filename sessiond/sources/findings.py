"""What `doctor` says about the sessions of other programs: one finding a source, one a file with something wrong."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from sessiond.config.settings import SourcesConfig
from sessiond.errors import pluralize, printable
from sessiond.sources.finder import SourceRoot, is_text
from sessiond.sources.root import OpenRoot
from sessiond.sources.unpacking import PACKAGE, can_unpack
from sessiond.store import dirfd, folding, raw_lines, transcript
from sessiond.store.catalog import Session
from sessiond.store.finding import Finding

# Of each source so many files are named, and the rest counted.
MAX_NAMED = 100
# The first lines that cannot be read are looked for in so much of all files together.
_MAX_SOUGHT_BYTES = 64 * 2**20


def describe(
    config: SourcesConfig, roots: Mapping[str, OpenRoot], expected: Mapping[str, SourceRoot], polled: int
) -> list[Finding]:
    """The findings about all sources."""
    found: list[Finding] = []
    for name, wanted in expected.items():
        root = roots.get(name)
        if wanted.finder.is_kept:
            found += _describe_kept(root) if root is not None else ()
        elif root is not None:
            found += _describe_root(root)
        elif not is_text(os.path.realpath(wanted.path)):
            what = f"the path of {printable(str(wanted.path))} is not UTF-8 text, so that its sessions are not shown"
            found.append(Finding("warn", f"source {name}", what, "rename the folder"))
        elif wanted.finder.is_ours:
            pass  # no machine was linked
        elif config.source(name).path is not None or config.source(name).enabled:
            found.append(Finding("warn", f"source {name}", f"there is no folder {wanted.path}", "correct its path"))
    if polled:
        what = f"{pluralize(polled, 'folder')} cannot be watched; changes there are noticed within half a minute"
        found.append(Finding("warn", "sources", what, "raise fs.inotify.max_user_watches"))
    return found


def _describe_root(root: OpenRoot) -> Iterator[Finding]:
    partial = sum(session.is_partial for session in root.sessions.values())
    what = pluralize(len(root.sessions), "session")
    if root.covered:
        what += f", {len(root.covered)} more shown as ours"
    if partial:
        what += f"; {partial} of them not read whole yet"
    yield Finding("ok", f"source {root.name}", f"{what}, in {printable(root.path)}")
    compressed = sum(session.is_partial and not can_unpack(session.place) for session in root.sessions.values())
    if compressed:
        what = f"of {pluralize(compressed, 'compressed session')} only the name is shown"
        yield Finding("warn", f"source {root.name}", what, f"install the package {PACKAGE}")
    wrong = list(_describe_files(root))
    yield from wrong[:MAX_NAMED]
    if len(wrong) > MAX_NAMED:
        yield Finding("warn", f"source {root.name}", f"{len(wrong) - MAX_NAMED} more files like these")


def _describe_kept(root: OpenRoot) -> Iterator[Finding]:
    if root.sessions:
        what = f"{pluralize(len(root.sessions), 'session')} shown from a kept file, in {printable(root.path)}"
        yield Finding("ok", f"source {root.name}", f"{what}: the program's own is gone")
    yield from list(_describe_files(root))[:MAX_NAMED]


def _describe_files(root: OpenRoot) -> Iterator[Finding]:
    for place, reason in sorted(root.odd.items()):
        what = "not all of it is shown" if place in root.sessions else "it is not shown"
        yield Finding("warn", printable(root.path_of(place)), f"{what}: {reason}")
    by_key = {session.key: session for session in root.sessions.values()}
    for place, key in sorted(root.shadowed.items()):
        shown = by_key.get(key)
        where = f": {printable(shown.path)} is shown" if shown is not None else ""
        yield Finding("warn", printable(root.path_of(place)), f"another file has its session {key}{where}")
    for session in root.sessions.values():
        what = _describe_session(session)
        if what:
            yield Finding("warn", printable(session.path), what)


def _describe_session(session: Session, first_bad: str = "") -> str:
    entry = session.entry
    parts = []
    if entry.corrupt_records:
        parts.append(f"{pluralize(entry.corrupt_records, 'line')} that cannot be read{first_bad}")
    if entry.source is not None:
        for kind, count in entry.source.unknown.items():
            parts.append(f"{pluralize(count, 'line')} of unknown type {printable(kind)}")
    return ", ".join(parts)


def name_first_bad_lines(found: list[Finding], sessions: Iterable[Session], record_limit: int) -> Iterator[None]:
    """Add to findings about files with lines that cannot be read which is the first of them, and why. For a thread;
    yields wherever the work may be interrupted.
    """
    left = _MAX_SOUGHT_BYTES
    bad = {(printable(one.path), _describe_session(one)): one for one in sessions if one.entry.corrupt_records}
    for number, finding in enumerate(found):
        session = bad.get((finding.thing, finding.what))
        if session is None or left <= 0:
            continue
        for line, place in _find_bad_line(session, record_limit, left):
            if place:
                found[number] = replace(finding, what=_describe_session(session, f" (the first: {place})"))
            left -= line.end - line.offset
            yield


def _find_bad_line(session: Session, record_limit: int, most_bytes: int) -> Iterator[tuple[transcript.Line, str]]:
    """The lines up to the first that cannot be read, with its place and the reason; the others without."""
    folder = session.folder
    try:
        with dirfd.closing(folder.open_file(session.file_name)) as fd:
            for line in transcript.read_lines(fd, 0, record_limit, dialect=folder.dialect, stop=most_bytes):
                if line.record is None:
                    number = 1 + raw_lines.count_lines(fd, 0, line.offset)
                    yield line, f"{folding.describe_place(number, line.offset)}, {line.bad}"
                    return
                yield line, ""
    except OSError:
        return  # removed meanwhile; what is wrong with the file is said elsewhere
