"""What may be wrong with a store, one check after the other. Reads only; changes nothing, takes no lock.

Every check yields its findings, and None wherever it may be interrupted, so that a daemon can go through its own store
a slice at a time. Knows the layout, records and the index. Does not know what is done about a finding.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable

import msgspec

from sessiond.errors import pluralize
from sessiond.model import lax
from sessiond.model.entry import Entry
from sessiond.model.lax import Count, Milliseconds
from sessiond.store import dirfd, folding, index, inventory, layout, reading, rewrites
from sessiond.store.finding import Finding, Findings
from sessiond.store.inventory import StoredName
from sessiond.store.reading import TranscriptReading

# Of each kind at most this many are named, and the rest counted.
_NAMED = 20
KEY_BYTES = 32

# The entry of a transcript in a daemon's memory, which is newer than its saved index.
EntryOf = Callable[[StoredName], Entry | None]


class _OutboxDelivery(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What the outbox takes for a delivery; the store does not know the outbox. Source: store.md, "Layout"."""

    delivery_id: str
    channel: str
    to: str
    session_key: str
    text: str
    title: str
    created_at: Milliseconds
    attempts: Count = 0
    failed_at: Milliseconds | None = None
    last_error: str | None = None


class _StoreFormat(msgspec.Struct, frozen=True):
    format: int


def check_tree(root_fd: int) -> Findings:
    """Symlinks, modes, left-over temporary files, other programs' archives, and files of unknown origin."""
    wrong: dict[str, list[str]] = {}
    root = os.fstat(root_fd)
    if root.st_uid != os.geteuid():
        yield Finding("error", "store", f"it belongs to user {root.st_uid}, not to this one", "give it to its user")
    for thing in inventory.list_store(root_fd):
        found = _finding_by_kind(thing)
        if found is not None:
            yield found
        elif is_open_to_others(thing):
            folder = "/".join(thing.parts) or "store"
            wrong.setdefault(folder, []).append(
                f"{thing.path.rpartition('/')[2]} is {stat.S_IMODE(thing.status.st_mode):04o}"
            )
        else:
            yield None
    for folder, names in wrong.items():
        yield Finding("warn", folder, f"others may read it: {_join_names(names)}", "sessiond doctor --fix")


def is_open_to_others(thing: StoredName) -> bool:
    """Whether somebody but the owner may do something with it, who should not."""
    ours = thing.kind in ("folder", "file", "transcript", "index", "temporary")
    return ours and thing.name != inventory.WORKSPACE and bool(stat.S_IMODE(thing.status.st_mode) & 0o077)


def _finding_by_kind(thing: StoredName) -> Finding | None:
    match thing.kind:
        case "symlink":
            return Finding("warn", thing.path, "a symlink; it is not followed", "put what it points to in its place")
        case "special":
            return Finding("warn", thing.path, "neither a file nor a folder", "remove it")
        case "temporary":
            return Finding("warn", thing.path, "left over from a write that was cut off", "sessiond doctor --fix")
        case "damaged index":
            hint = "where it is another program's, look into it for what its sessions were called; then remove it"
            return Finding("warn", thing.path, "stood in the place of the index, torn; it was kept", hint)
        case "foreign archive":
            hint = "import it from the folder it came from: sessiond import openclaw DIR"
            return Finding("warn", thing.path, "an archive of another program; it is not read", hint)
        case "unknown":
            return Finding("warn", thing.path, "nothing of sessiond's; it is left alone", "move it elsewhere")
        case _:
            return None


def check_transcripts(root_fd: int, record_limit: int, live: EntryOf | None = None) -> Findings:
    """Bad lines, records without any effect, incomplete last lines, keys with more than one transcript, index entries
    that differ from the fold of their transcript, and messages that were lost when a file was rewritten.
    """
    files = records = size = 0
    by_key: dict[str, list[str]] = {}
    known = index.Index(ours={}, foreign={})
    parts: tuple[str, ...] = ()
    for thing in inventory.list_store(root_fd):
        if thing.kind != "transcript":
            continue
        files += 1
        size += thing.status.st_size
        if not thing.status.st_size:
            yield Finding("ok", thing.path, "empty; it becomes a session with its first record")
        if thing.parts != parts:
            known, parts = _index_of(root_fd, thing), thing.parts
        entry = live(thing) if live is not None else known.ours.get(thing.session_id)
        rewrite = rewrites.rewrite_of(root_fd, thing, entry)
        moment_ms = rewrite.earlier_ms if rewrite is not None else 0
        try:
            found = yield from reading.read_transcript(root_fd, thing, record_limit, moment_ms=moment_ms)
        except FileNotFoundError:
            continue  # it was archived or removed just now
        except OSError as error:
            yield Finding("error", thing.path, f"cannot be read: {error.strerror}")
            continue
        records += found.records
        if found.entry.session_key and not thing.is_archived:
            by_key.setdefault(found.entry.session_key, []).append(thing.path)
        yield from _findings_of(thing, found, known)
        if rewrite is not None and (loss := rewrite.describe_loss(found)) is not None:
            yield Finding(
                "warn",
                thing.path,
                loss,
                "a backup has them, where there is one; docs/backup.md says how to put it back",
            )
    for key, paths in by_key.items():
        if len(paths) > 1:
            what = f"{len(paths)} transcripts are of one key, the newest counts: {_join_names(paths)}"
            yield Finding("warn", key, what, "a reset or a delete of the session archives the older ones")
    what = f"read: {pluralize(files, 'transcript')} with {pluralize(records, 'record')} in {size} bytes"
    yield Finding("ok", layout.AGENTS, what)


def _findings_of(thing: StoredName, found: TranscriptReading, known: index.Index) -> Findings:
    if found.bad:
        what = f"{pluralize(len(found.bad), 'bad line')}, passed over by every reader"
        stays = "they stay as they are; nothing else of the file is lost"
        yield Finding("warn", thing.path, f"{what}: {_join_names(found.bad)}", stays)
    if found.odd:
        yield Finding(
            "warn", thing.path, f"records that say nothing: {_join_names(found.odd)}", "they stay, and do nothing"
        )
    if found.half:
        yield Finding("warn", thing.path, f"half a line at {found.end}: still being written, or torn")
    if differences_of(thing, found, known):
        what = f"the index says something else of it: {', '.join(differences_of(thing, found, known))}"
        yield Finding("warn", thing.path, what, "stop the daemon, then: sessiond doctor --fix")


def differences_of(thing: StoredName, found: TranscriptReading, known: index.Index) -> list[str]:
    """The fields of the index entry that differ from the fold, for a transcript that has not changed since."""
    if not is_current(known, thing):
        return []
    return found.differences(known.ours[thing.session_id])


def _index_of(root_fd: int, thing: StoredName) -> index.Index:
    try:
        with dirfd.closing(dirfd.open_path_dir(root_fd, thing.parts)) as fd:
            return index.load(fd)
    except OSError:
        return index.Index(ours={}, foreign={})


def check_indexes(root_fd: int, now_ms: int, *, in_use: bool) -> Findings:
    """Damaged indexes, and transcripts that changed since their index was saved. With `in_use` the latter are left out:
    a running daemon knows of them and saves its indexes later.
    """
    by_folder: dict[tuple[str, ...], list[StoredName]] = {}
    for thing in inventory.list_store(root_fd):
        if thing.kind == "transcript":
            by_folder.setdefault(thing.parts, []).append(thing)
    for parts, transcripts in by_folder.items():
        path = "/".join((*parts, layout.INDEX))
        try:
            with dirfd.closing(dirfd.open_path_dir(root_fd, parts)) as fd:
                known = index.load(fd)
        except OSError:
            continue
        yield None
        if known.is_being_written_at(now_ms):
            what = "torn, and changed within the last minute: another program may be writing it"
            yield Finding("warn", path, what, "look again in a minute; if it stays: sessiond doctor --fix")
            continue
        if known.damaged:
            what = f"damaged: {_join_names(known.damaged, known.more_damaged)}; it is made again from the transcripts"
            yield Finding("warn", path, what, "sessiond doctor --fix")
            continue
        behind = sum(not is_current(known, thing) for thing in transcripts)
        if behind and not in_use:
            what = f"changed since it was saved: {behind} of {pluralize(len(transcripts), 'transcript')}"
            yield Finding("ok", path, f"{what}; the next start reads them")


def is_current(known: index.Index, thing: StoredName) -> bool:
    entry = known.ours.get(thing.session_id)
    return entry is not None and folding.is_current(entry.file, thing.status, thing.dialect)


def check_outbox(root_fd: int) -> Findings:
    """Deliveries that nobody took, and files in their folder that are none."""
    waiting = 0
    for thing in inventory.list_store(root_fd):
        if thing.kind != "file" or thing.parts != (layout.OUTBOX,):
            continue
        try:
            with dirfd.closing(reading.open_stored(root_fd, thing)) as fd:
                data = dirfd.read_file(fd, layout.MAX_DELIVERY_BYTES)
                delivery = lax.convert(lax.decode(data or b""), _OutboxDelivery)
        except FileNotFoundError:
            continue  # it was delivered just now
        except OSError:
            delivery = None
        if delivery is None or f"{delivery.delivery_id}.json" != thing.name:
            yield Finding("warn", thing.path, "no delivery; it is left alone", "move it elsewhere")
            continue
        waiting += delivery.failed_at is None
        if delivery.failed_at is not None:
            why = f": {delivery.last_error}" if delivery.last_error else ""
            what = f"a dead letter to {delivery.channel}{why}"
            yield Finding("warn", thing.path, what, "it is not tried again; read it, then remove the file")
        yield None
    if waiting:
        yield Finding("ok", layout.OUTBOX, f"{pluralize(waiting, 'delivery', 'deliveries')} still to be made")


def check_store(root_fd: int, *, in_use: bool) -> Findings:
    """The store's own files: its format, its key, its tokens, and tokens of runs that are over."""
    here = {thing.path: thing for thing in inventory.list_store(root_fd) if thing.kind == "file"}
    yield from _check_format(root_fd, here.get(layout.STORE_FILE))
    path = f"{layout.KEYS}/{layout.SIGNING_KEY}"
    key = here.get(path)
    if key is None:
        yield Finding("warn", path, "missing; the next start makes one, and tokens minted before count no more")
    elif key.status.st_size != KEY_BYTES:
        hint = "put back a copy, or remove it: then tokens minted before count no more"
        what = f"damaged: {key.status.st_size} bytes, not {KEY_BYTES}; the daemon does not start"
        yield Finding("error", path, what, hint)
    yield None
    yield from _check_tokens(root_fd, here.get(layout.TOKENS))
    if not in_use:
        yield from _check_run_tokens(root_fd)


def _check_format(root_fd: int, thing: StoredName | None) -> Findings:
    if thing is None:
        yield Finding("warn", layout.STORE_FILE, "missing; the next start makes one")
        return
    try:
        with os.fdopen(reading.open_stored(root_fd, thing), "rb") as file:
            found = msgspec.json.decode(file.read(4096), type=_StoreFormat)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        hint = f'write {{"format": {layout.FORMAT}, "createdAt": 0}} into it'
        yield Finding("error", layout.STORE_FILE, "damaged; the daemon does not start", hint)
        return
    if found.format > layout.FORMAT:
        what = f"of format {found.format}, and this sessiond reads up to {layout.FORMAT}"
        yield Finding("error", layout.STORE_FILE, what, "upgrade sessiond")


def _check_tokens(root_fd: int, thing: StoredName | None) -> Findings:
    if thing is None:
        return
    bad: list[str] = []
    more = 0
    try:
        with dirfd.closing(reading.open_stored(root_fd, thing)) as fd:
            data = dirfd.read_file(fd, layout.MAX_TOKENS_BYTES)
    except OSError as error:
        yield Finding("error", layout.TOKENS, f"cannot be read: {error.strerror}")
        return
    if data is None:
        what = f"has {thing.status.st_size} bytes, the limit is {layout.MAX_TOKENS_BYTES}; no token counts"
        hint = f"move it away together with {layout.KEYS}/, whose key makes revoked tokens count again; mint new ones"
        yield Finding("error", layout.TOKENS, what, hint)
        return
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip() and not (line.lstrip().startswith(b"{") and type(lax.decode(line)) is dict):
            if len(bad) < _NAMED:
                bad.append(f"line {number}")
            else:
                more += 1
    if bad:
        count, names = pluralize(len(bad) + more, "bad line"), _join_names(bad, more)
        what = f"{count}, passed over: {names}; a token revoked there counts again"
        hint = (
            "revoke again (sessiond token list, sessiond token revoke ID), then remove the lines while no daemon runs"
        )
        yield Finding("warn", layout.TOKENS, what, hint)


def _check_run_tokens(root_fd: int) -> Findings:
    try:
        with dirfd.closing(dirfd.open_path_dir(root_fd, (layout.RUN, layout.RUNS))) as fd:
            left = sorted(os.listdir(fd))
    except OSError:
        return
    if left:
        what = f"{pluralize(len(left), 'token')} of runs that are over, without effect: {_join_names(left)}"
        yield Finding("ok", f"{layout.RUN}/{layout.RUNS}", what, "the next start removes them")


def _join_names(names: Iterable[str], more: int = 0) -> str:
    """The first names and the number of the others; `more` is that of those which are not in `names`."""
    listed = list(names)
    others = max(len(listed) - _NAMED, 0) + more
    return ", ".join(listed[:_NAMED]) + (f" and {others} more" if others else "")
