"""Every fault point of an operation: count its calls, inject a fault at each, restart, and check the store.

python -m faults.sweep [NAME ...]     (from tests/; tries all points and prints violations)
"""

from __future__ import annotations

import errno
import itertools
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from faults import power
from faults.faulty_daemons import FaultyDaemon, FaultyDaemons, open_faulty_daemons
from faults.operations import OPERATIONS, Operation, configuration
from faults.promises import find_violations
from faults.scenes import Scene
from faults.shim import ALL, Call, Kind, Mode, Over, Point
from support.patience import PATIENCE_S

# What a power cut may undo: the removal of files and the note of it, since recovery repeats the removal; and the
# creation of the backup folder.
MAY_BE_UNDONE = re.compile(r"spawning/|backups: its name|agents/\w+/workspace/\.openclaw/attachments/\S+: its name")


class Failure(NamedTuple):
    """A violation that was found at a fault point."""

    operation: str
    point: str
    call: str
    what: str

    def __str__(self) -> str:
        return f"{self.operation}, {self.point} ({self.call}): {_tail(self.what)}"


class Sweep:
    """The fault points of one operation, on copies of one prepared store."""

    def __init__(self, daemons: FaultyDaemons, operation: Operation, template: FaultyDaemon) -> None:
        self.daemons, self.operation, self.template = daemons, operation, template
        self.calls: list[Call] = []
        self.cuts: list[power.Cut] = []
        # What a power cut could still undo when the operation was over.
        self.unsynced: list[str] = []
        # The outcomes without a fault, which the checks after a power cut use.
        self.counted = Scene(template)

    def count(self) -> list[str]:
        """Perform the operation once without a fault; the violations."""
        with self._daemon() as daemon:
            scene = Scene(daemon)
            before = power.snapshot(daemon.store)
            daemon.control.arm(None)
            self.operation.act(scene)
            deadline = time.monotonic() + PATIENCE_S
            while True:
                # Bytes that are in a file may be synced a moment later.
                self.calls = daemon.control.calls()
                found = power.find_unsynced(before, self.calls)
                self.unsynced = [name for name in found if not MAY_BE_UNDONE.match(name)]
                if not self.unsynced or time.monotonic() > deadline:
                    break
                time.sleep(0.01)
            daemon.control.disarm()
            self.cuts = list(power.cuts(before, self.calls))
            self.counted = scene
            return scene.wrong + self._check(scene, daemon, torn=False)

    def points(self) -> list[Point]:
        """Each call killed before and after, failed once and permanently, and each write done by half.

        Permanent faults are a full disk, failing syncs, and a disk that refuses everything. A refused append is blanked
        out; that is done by half as well, and killed in the middle.
        """
        found: list[Point] = []
        for call in self.calls:
            number, kind = call.number, call.kind
            found.append(Point(Mode.KILL_BEFORE, number))
            found.append(Point(Mode.FAIL, number, errno.ENOSPC if kind is Kind.GROW else errno.EIO))
            if kind is Kind.GROW:
                found.append(Point(Mode.FAIL, number, errno.ENOSPC, kind))
            if kind is Kind.SYNC:
                found.append(Point(Mode.FAIL, number, errno.EIO, kind))
            found.append(Point(Mode.FAIL, number, errno.EIO, ALL))
            if call.name == "write":
                found += [Point(Mode.HALF, number), Point(Mode.HALF, number, 0, Kind.GROW)]
            if call.path.endswith(".jsonl") and (call.name == "write" or kind is Kind.SYNC):
                refused = Point(Mode.HALF if kind is Kind.GROW else Mode.FAIL, number, errno.EIO)
                found += [refused._replace(over=over) for over in (Over.SHORT, Over.TORN)]
        if self.calls:
            found.append(Point(Mode.KILL_AFTER, self.calls[-1].number))
        return found

    def inject(self, point: Point) -> list[Failure]:
        """Perform the operation with the fault, restart without it; the violations."""
        with self._daemon() as daemon:
            scene = Scene(daemon, lasting=bool(point.forever))
            before = power.snapshot(daemon.store) if self._is_single_sync_failure(point) else None
            daemon.control.arm(point)
            found = self._act(scene, point)
            calls, hit = daemon.control.calls(), daemon.control.hit
            daemon.control.disarm()
            if hit:
                found += self._restart_and_check(scene, daemon, sure=point.forever != ALL)
                if before is not None and calls:
                    found += [
                        f"and after a power cut: {what}"
                        for what in self._check_after_later_power_cut(scene, before, calls)
                    ]
            return [Failure(self.operation.name, str(point), self._call(point.number), what) for what in found]

    def _act(self, scene: Scene, point: Point) -> list[str]:
        """Perform the operation and end the daemon, by a kill or a stop if the fault did not end it."""
        daemon = scene.daemon
        try:
            self.operation.act(scene)
        except AssertionError as error:
            scene.wrong.append(str(error))
        if daemon.process.poll() is None:
            if point.forever or point.number % 2:
                daemon.stop()
            else:
                daemon.kill()
        code = daemon.process.returncode
        if code not in (0, -9):
            scene.wrong.append(f"the daemon ended with {code}: {_tail(daemon.log.read_text())}")
        return scene.wrong

    def _is_single_sync_failure(self, point: Point) -> bool:
        """Whether one sync fails: its bytes may be on the disk all the same, and have to be blanked out there too."""
        kinds = {call.number: call.kind for call in self.calls}
        return point.mode is Mode.FAIL and not point.forever and kinds.get(point.number) is Kind.SYNC

    def _check_after_later_power_cut(self, scene: Scene, before: power.Files, calls: list[Call]) -> list[str]:
        with self.daemons.create() as daemon:
            self._copy_extra_files(daemon)
            power.restore(power.last_cut(before, calls).files, daemon.store)
            return self._restart_and_check(Scene(daemon, scene.outcomes, scene.texts), daemon)

    def cut(self, cut: power.Cut) -> list[Failure]:
        """Start on what a power cut left; the violations."""
        with self.daemons.create() as daemon:
            self._copy_extra_files(daemon)
            power.restore(cut.files, daemon.store)
            scene = Scene(daemon, self.counted.outcomes, self.counted.texts)
            found = self._restart_and_check(scene, daemon, mark=cut.number)
            return [Failure(self.operation.name, str(cut), self._call(cut.number), what) for what in found]

    def _call(self, number: int) -> str:
        return next((str(call) for call in self.calls if call.number == number), "?")

    @contextmanager
    def _daemon(self) -> Iterator[FaultyDaemon]:
        with self.daemons.create(self.template) as daemon:
            daemon.start(configuration(self.operation, daemon.folder))
            yield daemon

    def _copy_extra_files(self, daemon: FaultyDaemon) -> None:
        shutil.copytree(self.template.extra_files, daemon.extra_files, dirs_exist_ok=True)
        daemon.config.write_text(configuration(self.operation, daemon.folder))

    def _restart_and_check(self, scene: Scene, daemon: FaultyDaemon, **known: Any) -> list[str]:
        try:
            daemon.start()
        except AssertionError as error:
            return [f"it does not restart: {_tail(str(error))}"]
        return self._check(scene, daemon, torn=True, **known)

    def _check(
        self, scene: Scene, daemon: FaultyDaemon, *, torn: bool, mark: int | None = None, sure: bool = True
    ) -> list[str]:
        """The violations. `torn`: half a line may be left; not `sure`: refused texts may be there."""
        if not sure:
            scene.forget_refusals()
        found: list[str] = []
        try:
            if daemon.process.poll() is not None:
                daemon.start()
            Scene(daemon).settle(strict=True)
            self.operation.check(scene, daemon, mark)
            # It still accepts messages.
            daemon.call("sessions.create", key="agent:main:afterwards")
            assert daemon.reply("agent:main:afterwards", "and now?")["status"] == "ok"
        except Exception as error:  # noqa: BLE001
            found.append(_tail(f"{type(error).__name__}: {error}"))
        if daemon.stop() != 0:
            found.append("it does not stop cleanly")
        found += find_violations(daemon.store, scene, mark=mark, torn=torn, may_leave=self.operation.may_leave)
        if "Traceback" in (log := daemon.log.read_text()):
            found.append("a traceback in the log: " + log[log.index("Traceback") :][-600:])
        return found


def _tail(text: str) -> str:
    return text if len(text) < 1500 else "... " + text[-1500:]


def prepare_sweep(daemons: FaultyDaemons, operation: Operation) -> Sweep:
    """The sweep over the fault points of an operation. Operations that are prepared alike begin with one store."""

    def prepare(template: FaultyDaemon) -> None:
        template.start(configuration(operation, template.folder))
        operation.prepare(template)
        template.stop()

    return Sweep(daemons, operation, daemons.template((operation.prepare, operation.wakes), prepare))


def main(names: list[str]) -> None:
    with open_faulty_daemons() as daemons:
        assert daemons is not None, "no gcc"
        for operation in OPERATIONS:
            if names and operation.name not in names:
                continue
            one = prepare_sweep(daemons, operation)
            failures: list[object] = [f"{operation.name}, no fault: {what}" for what in one.count()]
            print(*failures, sep="\n", end="\n" if failures else "", flush=True)
            points, cuts = one.points(), one.cuts
            for violations in itertools.chain(map(one.inject, points), map(one.cut, cuts)):
                failures += violations
                print(*violations, sep="\n", end="\n" if violations else "", flush=True)
            counts = f"{len(one.calls)} calls, {len(points)} points, {len(cuts)} cuts, {len(failures)} failures"
            print(f"== {operation.name}: {counts}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
