"""What must hold of a store after any fault, read from its files alone. Each function yields what does not hold."""

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
# What a crash may leave for doctor to name: half a line, which every reader passes over.
TORN = ("half a line", "bad line")
# Between the new transcript of a reset and the archive of the old one: the newer counts, and doctor names both.
SUPERSEDED = "transcripts are of one key, the newest counts"
ATTACHMENTS = ".openclaw/attachments"


def broken(store: Path, scene: Scene, *, mark: int | None, torn: bool, may_leave: tuple[str, ...]) -> Iterator[str]:
    """Every promise that does not hold of a store whose daemon has stopped."""
    found = transcripts(store)
    yield from _texts(found, scene, mark)
    for one in found:
        yield from _records(one, torn=torn)
        yield from _runs(one)
    live = Counter(str(one.key) for one in found if not one.archived)
    if SUPERSEDED not in may_leave:
        yield from (f"{count} live transcripts of {key}" for key, count in live.items() if count > 1)
    yield from _left_lying(store, found)
    yield from _index(store, found)
    allowed = (*may_leave, *(TORN if torn else ()))
    for finding in doctor.report(store)["findings"]:
        if finding["level"] != "ok" and not any(words in finding["what"] for words in allowed):
            yield f"doctor: {finding['thing']}: {finding['what']}"


def _texts(found: list[Transcript], scene: Scene, mark: int | None) -> Iterator[str]:
    for what, text in scene.texts.items():
        count, outcome = sum(one.said(text) for one in found), scene.outcome(what, mark)
        if outcome == "done" and count != 1:
            yield f"{text!r} was acknowledged and is there {count} times"
        # What was refused is not there; a session that was made before its message was refused may be.
        if outcome == "refused" and count and mark is None:
            yield f"{text!r} was refused and is there {count} times"
        if count > 1:
            yield f"{text!r} is there {count} times"


def _records(one: Transcript, *, torn: bool) -> Iterator[str]:
    if one.bad and not torn:
        yield f"{one.path.name} has {one.bad} bad lines"
    if not one.records:
        yield f"{one.path.name} is empty"
        return
    types = [record["type"] for record in one.records]
    if types[0] != "session" or "session" in types[1:]:
        yield f"{one.path.name} does not begin with its only header: {types}"
    ids = Counter(record["id"] for record in one.records)
    yield from (f"{one.path.name}: the id {name} is there {count} times" for name, count in ids.items() if count > 1)
    parent = None
    for record in one.records[1:]:
        if record.get("parentId") != parent:
            yield f"{one.path.name}: {record['id']} names {record.get('parentId')} and is behind {parent}"
        parent = record["id"]


def _runs(one: Transcript) -> Iterator[str]:
    statuses: dict[str, list[str]] = defaultdict(list)
    for data in one.customs("sessiond/run"):
        statuses[data["runId"]].append(data["status"])
    for run_id, said in statuses.items():
        ends = [status for status in said if status in FINAL]
        whole = len(ends) == 1 and said[-1] in FINAL and len(said) == len(set(said))
        if not whole and not (len(said) == 1 and said[0] in ALONE):
            yield f"run {run_id} went {said}"


def _left_lying(store: Path, found: list[Transcript]) -> Iterator[str]:
    for path in store.rglob("*"):
        if path.name.startswith(dirfd.TEMP_PREFIX):
            yield f"left over: {path.relative_to(store)}"
    if (store / "spawning").is_dir():
        live = {one.path.stem for one in found if not one.archived}
        for path in (store / "spawning").iterdir():
            # `<attachments id>.<session id>`: files that came with messages of a session, and go with it.
            if path.name.partition(".")[2] not in live:
                yield f"left over: spawning/{path.name}"
    wanted = {str(one.key).rpartition(":")[2] for one in found if not one.archived}
    wanted |= {one.path.stem for one in found if not one.archived}
    for path in store.glob(f"agents/*/workspace/{ATTACHMENTS}/*"):
        if not _belongs(path.name, found, wanted):
            yield f"left over: {path.relative_to(store)}"


def _belongs(name: str, found: list[Transcript], wanted: set[str]) -> bool:
    """Whether a folder of attachments is some live session's: by its name, or spoken of in its transcript."""
    if name in wanted:
        return True
    return any(name in json.dumps(record) for one in found if not one.archived for record in one.records)


def _index(store: Path, found: list[Transcript]) -> Iterator[str]:
    """The saved index says what a fresh fold says."""
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
