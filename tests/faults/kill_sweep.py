"""Kill a daemon at every step of an action, restart it, and check what is left."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from faults.faulty_daemons import FaultyDaemon, FaultyDaemons
from faults.shim import Call, Mode, Point
from support.sampling import amount, spread

Act = Callable[[FaultyDaemon], None]
Check = Callable[[FaultyDaemon, str], None]

# A loaded machine may write in two commits what it writes in one as a rule, so that a run makes a call or two more. The
# points are those of the shortest of some runs, and one that was not reached is tried again.
COUNTED_RUNS, ATTEMPTS = amount(3, 2), 3


class KillSweep:
    """Kills the daemon before each of the calls with which one action changes its files, and after the last of them.

    The calls are counted over all threads. Each kill happens on a copy of the same store.
    """

    def __init__(self, daemons: FaultyDaemons, template: FaultyDaemon, config: str, act: Act) -> None:
        self._daemons, self._template, self._config, self._act = daemons, template, config, act
        self.calls = min((self._count() for _ in range(COUNTED_RUNS)), key=lambda calls: calls[-1].number)

    def _count(self) -> list[Call]:
        with self._daemons.create(self._template) as daemon:
            daemon.start(self._config)
            daemon.control.arm(None)
            self._act_until_synced(daemon)
            return daemon.control.calls()

    def points(self) -> list[Point]:
        """Where it is killed."""
        last = self.calls[-1].number
        return [*(Point(Mode.KILL_BEFORE, number) for number in range(1, last + 1)), Point(Mode.KILL_AFTER, last)]

    def kill_at(self, point: Point, check: Check) -> bool:
        """Act until the daemon is killed there, restart and check it; returns whether it was killed."""
        return any(self._try_once(point, check) for _ in range(ATTEMPTS))

    def _try_once(self, point: Point, check: Check) -> bool:
        with self._daemons.create(self._template) as daemon:
            daemon.start(self._config)
            daemon.control.arm(point)
            self._act_until_synced(daemon)
            is_hit = daemon.control.hit > 0
            if is_hit:
                assert daemon.process.wait() == -signal.SIGKILL
                daemon.control.disarm()
                daemon.start()
            check(daemon, self.name_of(point))
            return is_hit

    def _act_until_synced(self, daemon: FaultyDaemon) -> None:
        with suppress(OSError):
            self._act(daemon)
        # Records can be read before they are synced.
        daemon.wait_for(lambda: daemon.control.hit or _is_synced(daemon), "neither killed nor synced")

    def name_of(self, point: Point) -> str:
        """The point, and the call that had its number when the calls were counted."""
        calls = {call.number: str(call) for call in self.calls}
        return f"{point} ({calls.get(point.number, 'a call that changed nothing')})"


def _is_synced(daemon: FaultyDaemon) -> bool:
    """Whether the last call to each transcript was its sync."""
    last = {call.path: call.name for call in daemon.control.calls() if call.path.endswith(".jsonl")}
    return bool(last) and set(last.values()) == {"sync"}


def kill_at_every_call(daemons: FaultyDaemons, config: str, act: Act, check: Check, most: int) -> Counter[str]:
    """Kill an action at its calls, or `most` of them; returns how many calls of each name it makes."""
    with daemons.create() as template:
        template.start(config)
        act(template)  # once, so that the folders exist
        template.stop()
        sweep = KillSweep(daemons, template, config, act)
        points = spread(sweep.points(), most)
        missed = [sweep.name_of(point) for point in points if not sweep.kill_at(point, check)]
        assert not missed, f"not reached: {missed}; the calls were {[*map(str, sweep.calls)]}"
        return Counter(call.name for call in sweep.calls)
