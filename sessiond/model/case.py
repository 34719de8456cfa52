"""How texts are compared when one is searched for: without regard to case. Pure."""

from __future__ import annotations


def fold_case(text: str) -> str:
    """The text as it is compared: in lower case, with the final form of sigma replaced by the ordinary one.

    The parts of a text give the parts of the result, wherever it is cut.
    """
    return text.lower().replace("\u03c2", "\u03c3")
