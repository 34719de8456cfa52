"""Text from the command line or standard input, decoded to what the daemon accepts: UTF-8."""

from __future__ import annotations

import os
import sys

from sessiond.cli.frame.failures import USAGE, CommandFailed
from sessiond.errors import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def text_or_stdin(words: Sequence[str]) -> str:
    """The words joined to one text; for a single `-` standard input, without its last newline."""
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


def decode_words(value: Any) -> Any:
    """`value` with the words of the command line decoded; CommandFailed if one is not UTF-8.

    Python represents bytes that the locale cannot decode as surrogates. In a locale without UTF-8 they may be UTF-8.
    """
    if isinstance(value, str):
        return value if value.isascii() else _decode_word(value)
    if isinstance(value, list):
        return [decode_words(item) for item in value]
    if isinstance(value, dict):
        return {name: decode_words(item) for name, item in value.items()}
    return value


def _decode_word(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        pass
    else:
        return text
    try:
        data = os.fsencode(text)
    except UnicodeEncodeError:
        raise CommandFailed(f"{quote(text)} contains a lone surrogate", status=USAGE) from None
    try:
        return data.decode()
    except UnicodeDecodeError:
        shown = quote(data.decode(errors="backslashreplace"))
        raise CommandFailed(f"{shown} is not UTF-8 text", status=USAGE) from None
