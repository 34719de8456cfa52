"""What must hold of a store after any fault, read from its files alone. Each function yields violations."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from faults.scenes import Scene
from faults.transcripts import ALONE, FINAL, Transcript, transcripts

from sessiond.model.dialects import V3
from sessiond.model.entry import Entry
from sessiond.store import dirfd, doctor, folding, index

LIMIT = 8 * 2**20
# A crash may leave half a line, which doctor reports and every reader ignores.
TORN = ("half a line", "bad line")
# After a crash in a reset, between the new transcript and archiving the old one: the newer counts, doctor reports both.
SUPERSEDED = "transcripts are of one key, the newest counts"
ATTACHMENTS = ".openclaw/attachments"


def find_violations(
    store: Path, scene: Scene, *, mark: int | None, torn: bool, may_leave: tuple[str, ...]
) -> Iterator[str]:
    """Every promise that does not hold in the store of a stopped daemon."""
    found = transcripts(store)
    yield from _check_texts(found, scene, mark)
    for one in found:
        yield from _check_records(one, torn=torn)
        yield from _check_runs(one)
    live = Counter(str(one.key) for one in found if not one.archived)
    if SUPERSEDED not in may_leave:
        yield from (f"{count} live transcripts of {key}" for key, count in live.items() if count > 1)
    yield from _find_leftovers(store, found)
    yield from _check_index(store, found)
    allowed = (*may_leave, *(TORN if torn else ()))
    for finding in doctor.report(store)["findings"]:
        if finding["level"] != "ok" and not any(words in finding["what"] for words in allowed):
            yield f"doctor: {finding['thing']}: {finding['what']}"


def _check_texts(found: list[Transcript], scene: Scene, mark: int | None) -> Iterator[str]:
    for what, text in scene.texts.items():
        count, outcome = sum(one.count_texts(text) for one in found), scene.outcome(what, mark)
        if outcome == "done" and count != 1:
            yield f"{text!r} was acknowledged and occurs {count} times"
        # A refused text must not be there; the session that was created for it may be.
        if outcome == "refused" and count and mark is None:
            yield f"{text!r} was refused and occurs {count} times"
        if count > 1:
            yield f"{text!r} occurs {count} times"


def _check_records(one: Transcript, *, torn: bool) -> Iterator[str]:
    if one.bad and not torn:
        yield f"{one.path.name} has {one.bad} bad lines"
    if not one.records:
        yield f"{one.path.name} is empty"
        return
    types = [record["type"] for record in one.records]
    if types[0] != "session" or "session" in types[1:]:
        yield f"{one.path.name} does not begin with its only header: {types}"
    ids = Counter(record["id"] for record in one.records)
    yield from (f"{one.path.name}: the id {name} occurs {count} times" for name, count in ids.items() if count > 1)
    parent = None
    for record in one.records[1:]:
        if record.get("parentId") != parent:
            yield f"{one.path.name}: {record['id']} names {record.get('parentId')} and is behind {parent}"
        parent = record["id"]


def _check_runs(one: Transcript) -> Iterator[str]:
    statuses: dict[str, list[str]] = defaultdict(list)
    for data in one.data_of("sessiond/run"):
        statuses[data["runId"]].append(data["status"])
    for run_id, statuses_of_run in statuses.items():
        ends = [status for status in statuses_of_run if status in FINAL]
        whole = len(ends) == 1 and statuses_of_run[-1] in FINAL and len(statuses_of_run) == len(set(statuses_of_run))
        if not whole and not (len(statuses_of_run) == 1 and statuses_of_run[0] in ALONE):
            yield f"run {run_id} went {statuses_of_run}"


def _find_leftovers(store: Path, found: list[Transcript]) -> Iterator[str]:
    for path in store.rglob("*"):
        if path.name.startswith(dirfd.TEMP_PREFIX):
            yield f"left over: {path.relative_to(store)}"
    if (store / "spawning").is_dir():
        live = {one.path.stem for one in found if not one.archived}
        for path in (store / "spawning").iterdir():
            # `<attachments id>.<session id>` is the note of message files, which stays as long as the session.
            if path.name.partition(".")[2] not in live:
                yield f"left over: spawning/{path.name}"
    wanted = {str(one.key).rpartition(":")[2] for one in found if not one.archived}
    wanted |= {one.path.stem for one in found if not one.archived}
    for path in store.glob(f"agents/*/workspace/{ATTACHMENTS}/*"):
        if not _belongs_to_session(path.name, found, wanted):
            yield f"left over: {path.relative_to(store)}"


def _belongs_to_session(name: str, found: list[Transcript], wanted: set[str]) -> bool:
    """Whether a folder of attachments belongs to a live session: by its name, or because its transcript names it."""
    if name in wanted:
        return True
    return any(name in json.dumps(record) for one in found if not one.archived for record in one.records)


def _check_index(store: Path, found: list[Transcript]) -> Iterator[str]:
    """The saved index must equal a fresh fold of the transcripts."""
    for folder in {one.path.parent for one in found}:
        with dirfd.closing(dirfd.open_root(folder)) as fd:
            known = index.load(fd)
            if known.damaged:
                yield f"{folder.relative_to(store)}: the index is damaged"
            for path in folder.glob("*.jsonl"):
                if not path.stat().st_size:
                    continue
                saved = known.ours.get(path.stem)
                empty = folding.begin_anew(saved) if saved is not None else Entry(session_id=path.stem)
                fresh = folding.advance(fd, empty, path.name, LIMIT, collect=False, dialect=V3).entry
                if saved != fresh:
                    yield f"{path.name}: the index says {_difference(saved, fresh)}"


def _difference(saved: Entry | None, fresh: Entry) -> str:
    if saved is None:
        return "nothing"
    names = [name for name in Entry.__struct_fields__ if getattr(saved, name) != getattr(fresh, name)]
    return ", ".join(f"{name} {getattr(saved, name)!r}, a fresh fold {getattr(fresh, name)!r}" for name in names)


def deliveries(folder: Path) -> Counter[str]:
    """How often each delivery reached the channel."""
    path = folder / "delivered"
    return Counter(re.findall(r"\S+", path.read_text())) if path.exists() else Counter()
