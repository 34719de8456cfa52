"""Make a transcript of a real program fit for the repository: its shape stays, what is not ours to publish goes.

Paths of this machine and ports become made-up ones, and text of the program's maker (prompts, descriptions of tools)
becomes filler of the same length. Ids and times stay: they are random or harmless, and files refer to one another by
them. Knows JSON lines. Does not know any format.
"""

from __future__ import annotations

import json
from typing import Any

# Longer texts are the maker's: what the scenes and the model server say is shorter.
_MAX_OWN_CHARS = 400
_FILLER = "filler text of the same length "


class Scrubber:
    """`places` are paths and other words of this machine, each with what stands in its place, the longest first.

    Below members named in `foreign` every text is replaced, not only long ones.
    """

    def __init__(self, places: dict[str, str], foreign: frozenset[str] = frozenset()) -> None:
        self.places = dict(sorted(places.items(), key=lambda pair: -len(pair[0])))
        self._foreign = foreign

    def add_place(self, place: str, name: str) -> None:
        """Replace one more word of this machine."""
        self.places = {place: name, **self.places}

    def scrub_lines(self, text: str) -> str:
        """The JSON lines of a transcript, scrubbed."""
        return "".join(self._encode(json.loads(line)) + "\n" for line in text.splitlines() if line.strip())

    def scrub(self, value: Any, *, is_foreign: bool = False) -> Any:
        """A decoded JSON value, scrubbed."""
        if isinstance(value, dict):
            return {
                self._replace_places(name): self.scrub(item, is_foreign=is_foreign or name in self._foreign)
                for name, item in value.items()
            }
        if isinstance(value, list):
            return [self.scrub(item, is_foreign=is_foreign) for item in value]
        return self._scrub_text(value, is_foreign) if isinstance(value, str) else value

    def _encode(self, value: Any) -> str:
        return json.dumps(self.scrub(value), ensure_ascii=False, separators=(",", ":"))

    def _scrub_text(self, text: str, is_foreign: bool) -> str:
        if not is_foreign and len(text) <= _MAX_OWN_CHARS:
            return self._replace_places(text)
        # A tag in front tells what kind of text it is, and readers look at it.
        tag = text[: text.find(">") + 1] if text.startswith("<") else ""
        return tag + (_FILLER * (len(text) // len(_FILLER) + 1))[: len(text) - len(tag)]

    def _replace_places(self, text: str) -> str:
        for place, name in self.places.items():
            text = text.replace(place, name)
        return text
