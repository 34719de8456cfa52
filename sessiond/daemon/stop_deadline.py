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

# EX_OK and EX_IOERR of sysexits.h.
EXIT_HURRIED, EXIT_DISK = 0, 74
# After the first signal, all in all: requests get 5 s, programs 2 s, the disk the rest. systemd kills after 30 s.
STOP_S = 20.0
# After the second one: enough for whoever still listens to get an answer, and for a healthy disk to take all.
HURRY_S = 1.0
# So many sessions are named in the log.
_NAMED = 5


async def end_in_time(
    stop: trio.Event, hurry: trio.Event, unfinished: Callable[[], Mapping[str, int]], end: Callable[[int], object]
) -> None:
    """Call `end` with an exit code `STOP_S` after `stop` or `HURRY_S` after `hurry`, unless this is cancelled before.

    `unfinished` gives the appends that are not on disk, by session.
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
    end(EXIT_HURRIED if hurry.is_set() and not left else EXIT_DISK)
