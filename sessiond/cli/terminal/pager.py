"""Pass long output on a terminal through the user's pager, as git does. Elsewhere it is written directly."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from sessiond.cli.terminal.output import lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# R: show colours. F: end where everything fits. X: leave the text on the screen.
LESS = "FRX"
# The shell's exit status where there is no such program.
NO_SUCH_PROGRAM = 127


def show_paged(texts: Sequence[str]) -> None:
    """Print the texts, one per line; through $SESSIOND_PAGER, $PAGER or `less` if they do not fit on the screen."""
    if not sys.stdout.isatty() or len(texts) < _terminal_height():
        lines(texts)
        return
    pager = os.environ.get("SESSIOND_PAGER") or os.environ.get("PAGER") or "less"
    import subprocess

    # Without a kind of terminal `less` asks before it shows anything.
    if pager == "cat" or os.environ.get("TERM", "") in ("", "dumb"):
        lines(texts)
        return
    sys.stdout.flush()
    environ = {"LESS": LESS, **os.environ}
    # By the shell, because PAGER may have options. It is the user's own variable, so it may say anything.
    process = subprocess.Popen(["sh", "-c", pager], stdin=subprocess.PIPE, env=environ)
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin as pipe:  # the pager ended early
        pipe.write("".join(text + "\n" for text in texts).encode(errors="backslashreplace"))
    while True:
        # Ctrl-C is meant for the pager, which goes on.
        with suppress(KeyboardInterrupt):
            status = process.wait()
            break
    if status == NO_SUCH_PROGRAM:
        lines(texts)


def _terminal_height() -> int:
    try:
        return os.get_terminal_size(sys.stdout.fileno()).lines
    except OSError:
        return sys.maxsize
