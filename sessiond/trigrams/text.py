"""How a text is put into the index, and which of its parts are looked up there. Pure.

Text and query are changed in the same way, character by character, so that what is in the one is in the other. The
rules are those of SQLite's tokenizer `trigram`, which takes every three characters in a row and stops at a NUL.
"""

from __future__ import annotations

from collections.abc import Iterator

# A shorter text has no trigram.
LEAST_QUERY_CHARS = 3
# A query is at most so long when it was folded: only one letter becomes two. No more of one is looked up.
MOST_QUERY_CHARS = 1024
# More hardly narrow further, and each takes as long to look up as it is frequent: often the rarest few are enough.
_MOST_TRIGRAMS = 12
_FEW_TRIGRAMS = (4, 8)
# What stands further behind is rarer in texts, and what is not here is rarest.
_BY_FREQUENCY = " etaoinsrlhdcumpfgbywvk\n_-.,():'\"/=0123456789xjqz"
_RANKS = {character: rank for rank, character in enumerate(_BY_FREQUENCY)}
# A longer text is put into several rows, each of which begins with the end of the one before: no query is cut.
_ROW_CHARS = 128 * 1024


def make_storable(text: str) -> str:
    """The text with other characters for those that SQLite does not take: NUL and lone surrogates."""
    text = text.replace("\0", "\x01")
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def cut_rows(text: str, row_chars: int = _ROW_CHARS) -> Iterator[str]:
    """The text in pieces for one row each."""
    for begin in range(0, max(len(text) - MOST_QUERY_CHARS, 1), row_chars):
        yield text[begin : begin + row_chars + MOST_QUERY_CHARS]


def match_expressions(text: str) -> list[str]:
    """What a row that contains `text` (from `fold_case`) matches, in the language of FTS5: each says more than the one
    before, and takes longer. None at all if nothing is known.
    """
    stored = make_storable(text[:MOST_QUERY_CHARS])
    found = list(dict.fromkeys(stored[at : at + 3] for at in range(len(stored) - 2)))
    found.sort(key=_rarity, reverse=True)
    quoted = ['"{}"'.format(trigram.replace('"', '""')) for trigram in found[:_MOST_TRIGRAMS]]
    sizes = [*(few for few in _FEW_TRIGRAMS if few < len(quoted)), len(quoted)] if quoted else []
    return [" AND ".join(quoted[:size]) for size in sizes]


def _rarity(trigram: str) -> int:
    return sum(_RANKS.get(character, len(_RANKS)) for character in trigram)
