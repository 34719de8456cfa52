"""Every point of an operation: count its calls, then meet a fault at each, start again, and see what still holds.

python -m faults.sweep [NAME ...]     (from tests/, all points; prints what does not hold)
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
from faults.promises import broken
from faults.scenes import Scene
from faults.shim import ALL, Call, Kind, Mode, Over, Point
from support.patience import PATIENCE_S

# What a power cut may undo: a note of what is to be removed, which is gone through again; the first backup's folder;
# the removal of files, which is gone through again as well.
MAY_BE_UNDONE = re.compile(r"spawning/|backups: its name|agents/\w+/workspace/\.openclaw/attachments/\S+: its name")


class Failure(NamedTuple):
    """A promise that did not hold at a point."""

    operation: str
    point: str
    call: str
    what: str

    def __str__(self) -> str:
        return f"{self.operation}, {self.point} ({self.call}): {_tail(self.what)}"


class Sweep:
    """The points of one operation, on copies of one prepared store."""

    def __init__(self, daemons: FaultyDaemons, operation: Operation, template: FaultyDaemon) -> None:
        self.daemons, self.operation, self.template = daemons, operation, template
        self.calls: list[Call] = []
        self.cuts: list[power.Cut] = []
        # What it left to a power cut though it was over.
        self.unsynced: list[str] = []
        # What the operation without a fault was told; a cut goes by it.
        self.counted = Scene(template)

    def count(self) -> list[str]:
        """Live the operation once without a fault. What does not hold even so."""
        with self._daemon() as daemon:
            scene = Scene(daemon)
            before = power.snapshot(daemon.store)
            daemon.control.arm(None)
            self.operation.act(scene)
            deadline = time.monotonic() + PATIENCE_S
            while True:
                # What is in a file already may be about to be synced.
                self.calls = daemon.control.calls()
                found = power.unsynced(before, self.calls)
                self.unsynced = [name for name in found if not MAY_BE_UNDONE.match(name)]
                if not self.unsynced or time.monotonic() > deadline:
                    break
                time.sleep(0.01)
            daemon.control.disarm()
            self.cuts = list(power.cuts(before, self.calls))
            self.counted = scene
            return scene.wrong + self._after(scene, daemon, torn=False)

    def points(self) -> list[Point]:
        """Killed before and after each call, failed once and for good, and half of each write.

        For good: a full disk, syncs that fail, and a disk that takes nothing any more. What was refused is taken back
        by overwriting it: that is done by halves, too, and killed in the middle.
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

    def meet(self, point: Point) -> list[Failure]:
        """Live the operation with the fault, and again without; what does not hold."""
        with self._daemon() as daemon:
            scene = Scene(daemon, lasting=bool(point.forever))
            before = power.snapshot(daemon.store) if self._may_linger(point) else None
            daemon.control.arm(point)
            found = self._act(scene, point)
            calls, hit = daemon.control.calls(), daemon.control.hit
            daemon.control.disarm()
            if hit:
                found += self._again(scene, daemon, sure=point.forever != ALL)
                if before is not None and calls:
                    found += [f"and after a power cut: {what}" for what in self._lingered(scene, before, calls)]
            return [Failure(self.operation.name, str(point), self._call(point.number), what) for what in found]

    def _act(self, scene: Scene, point: Point) -> list[str]:
        """Until the daemon has ended: by the fault, or else by a kill or an ordinary stop."""
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

    def _may_linger(self, point: Point) -> bool:
        """Whether a sync fails once: then what it was about may be on the disk, and has to be taken back there too."""
        kinds = {call.number: call.kind for call in self.calls}
        return point.mode is Mode.FAIL and not point.forever and kinds.get(point.number) is Kind.SYNC

    def _lingered(self, scene: Scene, before: power.Files, calls: list[Call]) -> list[str]:
        with self.daemons.create() as daemon:
            self._beside(daemon)
            power.restore(power.last_cut(before, calls).files, daemon.store)
            return self._again(Scene(daemon, scene.told, scene.texts), daemon)

    def cut(self, cut: power.Cut) -> list[Failure]:
        """Start on what a power cut left; what does not hold."""
        with self.daemons.create() as daemon:
            self._beside(daemon)
            power.restore(cut.files, daemon.store)
            scene = Scene(daemon, self.counted.told, self.counted.texts)
            found = self._again(scene, daemon, mark=cut.number)
            return [Failure(self.operation.name, str(cut), self._call(cut.number), what) for what in found]

    def _call(self, number: int) -> str:
        return next((str(call) for call in self.calls if call.number == number), "?")

    @contextmanager
    def _daemon(self) -> Iterator[FaultyDaemon]:
        with self.daemons.create(self.template) as daemon:
            daemon.start(configuration(self.operation, daemon.folder))
            yield daemon

    def _beside(self, daemon: FaultyDaemon) -> None:
        shutil.copytree(self.template.beside, daemon.beside, dirs_exist_ok=True)
        daemon.config.write_text(configuration(self.operation, daemon.folder))

    def _again(self, scene: Scene, daemon: FaultyDaemon, **known: Any) -> list[str]:
        try:
            daemon.start()
        except AssertionError as error:
            return [f"it does not start again: {_tail(str(error))}"]
        return self._after(scene, daemon, torn=True, **known)

    def _after(
        self, scene: Scene, daemon: FaultyDaemon, *, torn: bool, mark: int | None = None, sure: bool = True
    ) -> list[str]:
        """What does not hold. `torn`: half a line may be left; not `sure`: what was refused may be there."""
        if not sure:
            scene.forget_refusals()
        found: list[str] = []
        try:
            if daemon.process.poll() is not None:
                daemon.start()
            Scene(daemon).settle(strict=True)
            self.operation.check(scene, daemon, mark)
            # It goes on.
            daemon.call("sessions.create", key="agent:main:afterwards")
            assert daemon.reply("agent:main:afterwards", "and now?")["status"] == "ok"
        except Exception as error:  # noqa: BLE001
            found.append(_tail(f"{type(error).__name__}: {error}"))
        if daemon.stop() != 0:
            found.append("it does not stop cleanly")
        found += broken(daemon.store, scene, mark=mark, torn=torn, may_leave=self.operation.may_leave)
        if "Traceback" in (log := daemon.log.read_text()):
            found.append("a traceback in the log: " + log[log.index("Traceback") :][-600:])
        return found


def _tail(text: str) -> str:
    return text if len(text) < 1500 else "... " + text[-1500:]


@contextmanager
def sweep(daemons: FaultyDaemons, operation: Operation) -> Iterator[Sweep]:
    """The operation's store, prepared."""
    with daemons.create() as template:
        template.start(configuration(operation, template.folder))
        operation.prepare(template)
        template.stop()
        yield Sweep(daemons, operation, template)


def main(names: list[str]) -> None:
    with open_faulty_daemons() as daemons:
        assert daemons is not None, "no gcc"
        for operation in OPERATIONS:
            if names and operation.name not in names:
                continue
            with sweep(daemons, operation) as one:
                failures: list[object] = [f"{operation.name}, no fault: {what}" for what in one.count()]
                print(*failures, sep="\n", end="\n" if failures else "", flush=True)
                points, cuts = one.points(), one.cuts
                for met in itertools.chain(map(one.meet, points), map(one.cut, cuts)):
                    failures += met
                    print(*met, sep="\n", end="\n" if met else "", flush=True)
            counts = f"{len(one.calls)} calls, {len(points)} points, {len(cuts)} cuts, {len(failures)} failures"
            print(f"== {operation.name}: {counts}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
