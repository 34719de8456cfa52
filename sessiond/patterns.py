"""Compile the owner's regular expressions, or refuse them with a reason. Used to check and to apply them."""

from __future__ import annotations

import re
import warnings

# A repetition of a repetition like `(a+)+`, which can take exponential time and block the daemon.
_NESTED = re.compile(r"(?<!\\)[+*}][)][+*{]")


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """The compiled pattern. ValueError with a reason that continues a sentence after the pattern's name."""
    if _NESTED.search(pattern):
        raise ValueError("repeats a repetition, which can take for ever; write it flat")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about syntax that may change in a later Python
            return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    except (ValueError, OverflowError):  # int() of over 4,300 digits, and numbers of over 32 bits
        raise ValueError("is not a regular expression: it has a number that is too large") from None
    except (RecursionError, MemoryError):
        raise ValueError("is not a regular expression that can be used: it is too deep") from None
