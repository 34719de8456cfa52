"""Text that is given on the command line or on standard input."""

from __future__ import annotations

import sys

from sessiond.cli.frame.failures import USAGE, CommandFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def text_or_stdin(words: Sequence[str]) -> str:
    """The words as one text; `-` alone is what standard input holds, without its last newline."""
    if tuple(words) != ("-",):
        text = " ".join(words)
    else:
        data = sys.stdin.buffer.read()
        try:
            text = data.decode().removesuffix("\n")
        except UnicodeDecodeError as error:
            raise CommandFailed(
                f"standard input is not UTF-8 text (byte {error.start})",
                hint="a file goes with: sessiond spawn TASK --attach FILE",
                status=USAGE,
            ) from None
    if not text.strip():
        raise CommandFailed("the text is empty", status=USAGE)
    return text
