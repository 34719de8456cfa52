"""Small changes of the code, found in its syntax trees, which a test should notice.

A comparison inverted, `and` for `or`, a number one higher, a condition negated, a statement removed, a shield
removed. Pure: texts in, changes out. The same seed gives the same changes of the same code.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Change(NamedTuple):
    """Replaces the text between two offsets, in the lines `first` to `last`, with `new`."""

    file: str
    begin: int
    end: int
    new: str
    first: int
    last: int


_INVERSE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
# Calls that tests do not check: log lines, and what only the type checker reads.
_SILENT_CALLS = frozenset({"log", "cast", "TypeVar"})


def draw(sources: Mapping[str, str], count: int, seed: int) -> list[Change]:
    """`count` different changes of the files, given as name and text, in random order."""
    found = [change for name in sorted(sources) for change in changes_of(name, sources[name])]
    return random.Random(seed).sample(found, min(count, len(found)))


def changes_of(name: str, text: str) -> Iterator[Change]:
    """Every change of one file, in the order of its tree."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    raw = text.encode()
    for node, new in _walk(ast.parse(text)):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        if raw[begin:end].decode() != new:
            at, to = len(raw[:begin].decode()), len(raw[:end].decode())
            yield Change(name, at, to, new, node.lineno, node.end_lineno or node.lineno)


def _walk(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    yield from _changes(node)
    for name, value in ast.iter_fields(node):
        # Tests check neither types nor texts, and offsets in an f-string are not those of the file.
        if name in ("annotation", "returns", "decorator_list", "keywords") and not isinstance(node, ast.Call):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_silent(child):
                yield from _walk(child)


def _is_silent(node: ast.AST) -> bool:
    match node:
        case ast.JoinedStr() | ast.Assert() | ast.Import() | ast.ImportFrom():
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Subscript(value=ast.Name(id=name)):
            return name[:1].isupper()
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name)) | ast.Name(id=name)):
            return name in _SILENT_CALLS
        case ast.Expr(value=value):
            return isinstance(value, ast.Constant) or _is_silent(value)
    return False


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    match node:
        case ast.Compare(ops=[op, *rest]) if type(op) in _INVERSE:
            inverse: list[ast.cmpop] = [_INVERSE[type(op)](), *rest]
            yield node, ast.unparse(ast.Compare(node.left, inverse, node.comparators))
        case ast.BoolOp(op=op):
            yield node, ast.unparse(ast.BoolOp(ast.And() if isinstance(op, ast.Or) else ast.Or(), node.values))
        case ast.Constant(value=bool() as flag):
            yield node, str(not flag)
        case ast.Constant(value=int() as number):
            yield node, str(number + 1)
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) if not _is_plain(test):
            yield test, f"(not ({ast.unparse(test)}))"
        case ast.Raise() | ast.Delete() | ast.AugAssign() | ast.Continue() | ast.Break():
            yield node, "pass"
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            yield node, "pass"


def _is_plain(test: ast.expr) -> bool:
    """Whether negating it is the same as inverting its comparison, which is a change of its own."""
    return isinstance(test, ast.Compare) and len(test.ops) == 1
