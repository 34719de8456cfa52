"""Whether the name of a function says what a call of it does: a verb, or a noun for what it gives."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

# Participles that do not end in -ed, without those that are verbs as well (cut, put, read, run, set).
_PARTICIPLES = """
    begun born bought bound broken brought built caught chosen done drawn driven fallen felt flown forgiven forgotten
    found frozen given gone got had heard held hidden hung kept known laid led left lent lost made meant met paid risen
    said seen sent shaken shown shut sold sought spent spoken stood struck stuck sung swept sworn taken taught thought
    thrown told torn understood unread withdrawn withheld woken won worn written
"""
_PREPOSITIONS = """
    about above after against among around as at before behind below beside between beyond by during for from in inside
    into near of off on onto out outside over past per since through to toward under until up upon via with within
    without
"""
IRREGULAR_PARTICIPLES = frozenset(_PARTICIPLES.split())
PREPOSITIONS = frozenset(_PREPOSITIONS.split())
# Verbs and nouns that only look like a participle.
NOT_PARTICIPLES = frozenset({"embed", "feed", "need", "seed", "shed", "speed"})


def is_participle(word: str) -> bool:
    irregular = {word, word.removeprefix("un")} & IRREGULAR_PARTICIPLES
    return bool(irregular) or (word.endswith("ed") and word not in NOT_PARTICIPLES)


def says_what_it_does(name: str) -> bool:
    """Whether a function's name has a word besides participles and prepositions: `made(x)` and `told_of(x)` have none.

    `on_accepted` has none either, but that is what a callback is called everywhere.
    """
    words = [word for word in name.split("_") if word]
    return words[:1] == ["on"] or not all(is_participle(word) or word in PREPOSITIONS for word in words)


def functions_to_call(nodes: Iterable[ast.AST]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions but properties, which state a condition and are not called: `run.ended`, `link.failed`."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            marks = {part for decorator in node.decorator_list for part in ast.unparse(decorator).split(".")}
            if not marks & {"property", "cached_property", "setter"}:
                yield node
