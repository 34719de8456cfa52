"""End the process where its end takes too long, as on a disk that does not answer.

A thread in a system call can be neither cancelled nor waited for with a deadline: only the end of the process is sure.
Nothing that was acknowledged is lost by it, as by no kill; what a crash interrupts the next start continues.
Knows two events and what is left. Does not know what keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog
import trio

log = structlog.get_logger("sessiond")

# A unit that was told to stop, and lost nothing, has not failed. One that nobody told to has: `Restart=on-failure`.
EXIT_STOPPED, EXIT_FAILED = 0, 1
EXIT_DISK = 74  # EX_IOERR of sysexits.h
# After the first signal, all in all: requests get 5 s, programs 2 s, the disk the rest. systemd kills after 30 s.
STOP_S = 20.0
# After the second one: enough for whoever still listens to get an answer, and for a healthy disk to take all.
HURRY_S = 1.0
# So many sessions are named in the log.
_NAMED = 5


async def end_in_time(
    stop: trio.Event,
    hurry: trio.Event,
    unfinished: Callable[[], Mapping[str, int]],
    end: Callable[[int], object],
    was_told: Callable[[], bool],
) -> None:
    """Call `end` with an exit code `STOP_S` after `stop` or `HURRY_S` after `hurry`, unless this is cancelled before.

    `unfinished` gives the appends that are not on disk, by session. `was_told`: a signal is why it ends.
    """
    await stop.wait()
    began = trio.current_time()
    with trio.move_on_after(STOP_S):
        await hurry.wait()
        await trio.sleep(HURRY_S)
    left = unfinished()
    waited = {"waited_s": round(trio.current_time() - began, 1)}
    if left:
        log.error(
            "stopped without the disk, which does not answer; these appends were not acknowledged and may be missing",
            appends=sum(left.values()),
            sessions=[*left][:_NAMED],
            **waited,
        )
    else:
        log.warning("stopped before everything had ended; the next start continues it", **waited)
    end(EXIT_DISK if left else EXIT_STOPPED if was_told() else EXIT_FAILED)
