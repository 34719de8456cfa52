"""Whatever other programs do to a transcript around the daemon's appends: each acknowledged record is readable in it
exactly once, unless another program removed it afterwards.

A stranger acts between two appends, between the check and the write of one, and between its sync and its
acknowledgement. By default a sample; with SESSIOND_SOAK_S=3600 in the environment it goes on for an hour.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from support.followed_store import FollowedStore, followed_store, message
from support.patience import PATIENCE_S
from support.sampling import amount

from sessiond.errors import StorageError
from sessiond.store.catalog import Session
from sessiond.store.new_records import Message, drafts_of, lines_of
from sessiond.store.store import SessionStore

KEY = "agent:main:main"
HALF, REST = b'{"type":"message","id":"stranger","message":{"role":"user","co', b'ntent":"half"}}\n'
WHOLE = b'{"type":"message","id":"whole","message":{"role":"user","content":"whole"}}\n'


class Stranger:
    """Another program that changes the transcript at `path`. Each method changes it in a way that real programs do."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kept = path.read_bytes()

    def begin_a_line(self) -> None:
        self._add(HALF)

    def end_the_line(self) -> None:
        self._add(REST)

    def write_a_line(self) -> None:
        self._add(WHOLE)

    def write_a_line_without_its_end(self) -> None:
        self._add(WHOLE[:-1])

    def keep(self) -> None:
        """Read the file, to write it back later."""
        self.kept = self._content()

    def put_back_over(self) -> None:
        self._put(self.kept)

    def put_back_in_place(self) -> None:
        if self.path.exists():
            self.path.write_bytes(self.kept)

    def put_a_copy_over(self) -> None:
        self._put(self._content())

    def edit_as_sed(self) -> None:
        self._put(self._content().replace(b"x", b"y"))

    def delete_the_first_line(self) -> None:
        self._put(self._content().partition(b"\n")[2])

    def delete_the_last_line(self) -> None:
        self._put(b"".join(self._content().splitlines(keepends=True)[:-1]))

    def reformat(self) -> None:
        lines = [self._reformat_line(line) for line in self._content().splitlines()]
        self._put(b"".join(line + b"\n" for line in lines))

    def empty(self) -> None:
        self._cut(0)

    def cut_within_the_last_line(self) -> None:
        self._cut(len(self._content()) - 3)

    def cut_after_the_first_line(self) -> None:
        self._cut(self._content().find(b"\n") + 1)

    def copy_beside(self) -> None:
        shutil.copyfile(self.path, self.path.with_name(self.path.stem + "-backup.jsonl"))

    @staticmethod
    def is_whole(line: bytes) -> bool:
        try:
            return isinstance(json.loads(line), dict)
        except ValueError:
            return False

    def _content(self) -> bytes:
        return self.path.read_bytes() if self.path.exists() else b""

    def _add(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)

    def _put(self, data: bytes) -> None:
        new = self.path.with_name("new")
        new.write_bytes(data)
        new.rename(self.path)

    def _cut(self, size: int) -> None:
        os.truncate(self.path, max(0, size))

    @staticmethod
    def _reformat_line(line: bytes) -> bytes:
        try:
            return json.dumps(json.loads(line), indent=None, separators=(" , ", " : ")).encode()
        except ValueError:
            return line


ACTS = [name for name in vars(Stranger) if not name.startswith("_") and name != "is_whole"]
acts = st.sampled_from(ACTS)
moments = st.lists(acts, max_size=3)


class AppendMachine(RuleBasedStateMachine):
    """Collects steps; `AppendScenario` carries them out."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[str, Any]] = []

    @initialize(watching=st.booleans())
    def begin(self, watching: bool) -> None:
        self.watching = watching

    @rule(count=st.integers(1, 3), between=moments, synced=moments)
    def daemon_appends(self, count: int, between: list[str], synced: list[str]) -> None:
        self.steps.append(("append", (count, between, synced)))

    @rule(act=acts)
    def stranger_acts(self, act: str) -> None:
        self.steps.append(("act", act))

    @rule(without_index=st.booleans())
    def restart(self, without_index: bool) -> None:
        self.steps.append(("restart", without_index))

    def teardown(self) -> None:
        if self.steps:
            with tempfile.TemporaryDirectory(dir=fast_folder()) as folder:
                trio.run(AppendScenario(Path(folder), self.watching).run, self.steps)


def fast_folder() -> str | None:
    """A folder in memory where there is one: these tests do not depend on syncs."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class AppendScenario:
    """A store and a stranger. `due` holds the ids of records that were acknowledged and not removed afterwards."""

    def __init__(self, folder: Path, watching: bool) -> None:
        self.folder, self.watching = folder, watching
        self.due: set[str] = set()
        self.count = 0
        self.synced: list[str] = []
        self.stranger: Stranger
        self.parts: FollowedStore

    async def run(self, steps: list[tuple[str, Any]]) -> None:
        with trio.fail_after(PATIENCE_S):
            while steps:
                steps = await self.run_until_restart(steps)

    async def run_until_restart(self, steps: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """Run one daemon up to the next restart; returns the steps that are left."""
        async with followed_store(self.folder, watching=self.watching, durable=True, sync=self.sync) as self.parts:
            await self.find()
            for number, (name, what) in enumerate(steps):
                if name == "restart":
                    await self.leave(what)
                    return steps[number + 1 :]
                if name == "act":
                    self.act(what)
                else:
                    await self.append(*what)
                self.check()
        return []

    @property
    def store(self) -> SessionStore:
        return self.parts.store

    async def find(self) -> None:
        """Look up the key's session after a start; created if the stranger removed it."""
        session = self.store.catalog.by_key.get(KEY)
        if session is None:
            # A session may be gone only if the stranger emptied its file or left it without any header.
            assert not self.due, self.due
            session = await self.parts.create(KEY)
        self.stranger = Stranger(self.store.path / session.path)
        self.check()
        await self.check_page()

    async def leave(self, without_index: bool) -> None:
        for folder in self.store.dirty_folders():
            await self.store.save(folder)
        for index in self.folder.rglob("sessions.json"):
            if without_index:
                index.unlink()

    def act(self, name: str) -> None:
        act: Callable[[], None] = getattr(self.stranger, name)
        act()
        self.due &= set(self.ids_in_file())
        if not self.has_key():
            # Without its header, or the record in place of it, the file has lost its key: its records count as removed.
            self.due.clear()

    def has_key(self) -> bool:
        content = self.stranger.path.read_bytes()
        first = content.lstrip().partition(b"\n")[0]
        # A header or a record that was cut in the middle does not count.
        if b'"session"' in first and self.stranger.is_whole(first):
            return KEY.encode() in first
        return any(b'"sessionKey"' in line and self.stranger.is_whole(line) for line in content.splitlines())

    def sync(self, fd: int) -> None:
        if self.synced:
            self.act(self.synced.pop(0))

    async def append(self, count: int, between: list[str], synced: list[str]) -> None:
        texts = [f"{number} " + "x" * (number % 40) for number in range(self.count, self.count + count)]
        self.count += count
        between, self.synced = list(between), list(synced)
        session = self.session()
        parts = [Message(message(text)) for text in texts]
        drafts = drafts_of(parts, self.store.settings.ids, 1, self.store.record_limit)

        def compose(parent: str | None) -> list[bytes]:
            if between:
                self.act(between.pop(0))
            return lines_of(drafts, self.store.record_limit, parent)

        ids = {draft.id for draft in drafts}
        try:
            places = await self.store.committer.append(session, compose, drafts[-1].id)
        except StorageError:
            assert not ids & set(self.ids_in_file())
            return
        finally:
            self.synced = []
        content = self.stranger.path.read_bytes()
        assert [json.loads(content[begin:end])["id"] for begin, end in places] == [draft.id for draft in drafts]
        self.due |= ids

    def session(self) -> Session:
        return self.store.catalog.by_id[self.stranger.path.stem]

    def ids_in_file(self) -> list[str]:
        """The ids of the records that a reader finds in the file, in order."""
        found = []
        for line in self.stranger.path.read_bytes().splitlines():
            try:
                record = json.loads(line)
                # A second header, which a stranger's change may leave in the file, is ignored by readers.
                if record["type"] != "session":
                    found.append(record["id"])
            except (ValueError, KeyError, TypeError):
                continue
        return found

    def check(self) -> None:
        standing = [own for own in self.ids_in_file() if own not in ("stranger", "whole")]
        assert self.due <= set(standing), (self.due, standing)
        assert len(standing) == len(set(standing)), standing

    async def check_page(self) -> None:
        """A page contains every due record exactly once."""
        page = await self.store.page(self.session(), lambda record: True, limit=10**6, max_bytes=10**9)
        shown = [line.record.id for line, _ in page.lines if line.record]
        assert [shown.count(own) for own in self.due] == [1] * len(self.due), (self.due, shown)


def test_every_acknowledged_record_is_in_its_transcript_exactly_once() -> None:
    soak_s = float(os.environ.get("SESSIOND_SOAK_S", "0"))
    deadline = time.monotonic() + soak_s
    while True:
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            AppendMachine,
            settings=settings(
                max_examples=200 if soak_s else amount(60, 4),
                stateful_step_count=20,
                # Shrinking such a scenario takes minutes, and a failure is readable without it.
                phases=[Phase.generate],
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
        if time.monotonic() >= deadline:
            return
