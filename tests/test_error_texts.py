"""Error texts are sentences for people, without Python syntax or Python names, for any input."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import cbor2
import h11
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.in_process import in_process_daemon
from support.rows import check_each
from support.sampling import amount

import sessiond
from sessiond.config import settings as config
from sessiond.errors import MAX_QUOTED_CHARS, ConfigError, SessiondError, pluralize, quote
from sessiond.methods.table import METHODS
from sessiond.patterns import compile_pattern
from sessiond.policy.secrets import compile_patterns
from sessiond.rpc.codecs import CBOR
from sessiond.rpc.messages import MessageError, parse, split_batch
from sessiond.transports.http import refusal_of
from sessiond.transports.websocket import reason_of_close

ROOT = Path(sessiond.__file__).parent
# Allowed: a line of the configuration, as in `allowAgents = ["helper"]`.
PYTHON = re.compile(
    r"\bNone\b|\bTrue\b|\bFalse\b|NoneType|<class|<function|object at 0x|\bb['\"]|Traceback|\[Errno|\bdict_|"
    r"\\x[0-9a-f]{2}|['\"]: |\(\)|[a-z]Error\b|(?<! = )\[['\"]|\{['\"]"
)
HOSTILE: tuple[Any, ...] = (
    *(None, True, -1, 1.5, 10**30, -(10**400), "", "it's\u202e \x07\n\x1b[31m \"q\" 'q' \\ é", "\ud800", "x" * 3000),
    *([], {}, [None], {"it's": None}, [["x"]], "agent:it's:x", "agent:main:it's", "0" * 32),
)


# What a file without any of the forms that the syntax tree is searched for cannot contain.
AS_PYTHON = re.compile(r"!\s*r|\brepr\b|\bascii\b")


def test_no_text_is_formatted_with_repr() -> None:
    found = []
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        if not AS_PYTHON.search(text):
            continue
        tree = ast.parse(text)
        # `__repr__` is for a debugger, and the AttributeError of a module for programmers.
        hidden = {
            inner
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and node.name in ("__repr__", "__getattr__")
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            as_python = isinstance(node, ast.FormattedValue) and node.conversion == ord("r")
            called = (
                isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("repr", "ascii")
            )
            if (as_python or called) and node not in hidden:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []


@given(st.text(max_size=300))
def test_a_quoted_text_is_short_printable_and_on_one_line(text: str) -> None:
    shown = quote(text)
    assert shown[0] == shown[-1] == "'" and shown.isprintable()
    assert len(shown) <= 2 + 6 * MAX_QUOTED_CHARS
    if text.isprintable() and len(text) <= MAX_QUOTED_CHARS:
        assert shown == f"'{text}'"


def _params(method: Any) -> list[dict[str, Any]]:
    """Calls of a method in which one parameter has a hostile value and the others are valid."""
    fields = msgspec.structs.fields(method.params)
    base = {field.encode_name: "agent:main:x" for field in fields if field.required}
    one_wrong = [{**base, field.encode_name: value} for field in fields for value in HOSTILE]
    # By default each field gets every seventh of the values, beginning with another one.
    return [*one_wrong[:: amount(1, 7)], {**base, "it's": 1}, {**base, "x" * 300: None}]


async def test_every_error_of_every_method_is_a_sentence(tmp_path: Path) -> None:
    @check_each("method", METHODS, ids=lambda method: method.name)
    async def check(method: Any) -> None:
        texts = set()
        async with parts.connect() as owner:
            for params in _params(method):
                # Lone surrogates are sent as escapes, as JSON.stringify writes them.
                line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method.name, "params": params})
                await owner.write(line.encode() + b"\n")
                answer = await owner.receive()
                while "method" in answer:
                    answer = await owner.receive()
                if "error" in answer:
                    assert answer["error"]["code"] != -32603, (params, answer)
                    texts.add(answer["error"]["message"])
        assert [text for text in texts if PYTHON.search(text) or not text.isprintable() or len(text) > 1000] == []

    async with in_process_daemon(tmp_path, '[store]\ndurability = "os"\n') as parts:
        await check()


HEADS = (
    b"GET /\x01 HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: a\r\nbad header\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: a\r\nx: \x00\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"POST /rpc HTTP/1.1\r\nhost: a\r\ncontent-length: it's\r\n\r\n",
    b"GET / HTTP/9\r\n\r\n",
)


@check_each("head", HEADS)
def test_invalid_http_gets_an_error_without_python(head: bytes) -> None:
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(head)
    with pytest.raises(h11.RemoteProtocolError) as raised:
        connection.next_event()
    text = refusal_of(raised.value).message
    assert text.startswith("This is no HTTP/1.1 request: ")
    assert not PYTHON.search(text), text


LIBRARIES = re.compile(r"codec can't|UndefinedType|SimpleValue|\bint\b|\bsys\.|<\w+\.|Opcode|\bstr\b|__|Python")
_PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
_ODD = st.sampled_from([cbor2.undefined, *map(cbor2.CBORSimpleValue, (0, 32, 255))])
_KEYS = st.integers() | st.binary() | st.text() | st.booleans() | _ODD
_CBOR = st.recursive(_PLAIN | _ODD, lambda inner: st.lists(inner) | st.dictionaries(_KEYS, inner), max_leaves=8)


@given(st.binary(max_size=40) | _CBOR.map(cbor2.dumps))
@example(cbor2.dumps({1: 2}))
@example(b"\xa1\x80\x01")
@example(b"\xa1aa\xf7")
@example(b"\xa1aa\xf8\x63")
@example(b"\xa1aac\xed\xa0\x80")
@example(b"\xa2a'\x01a'\x01")
def test_invalid_cbor_gets_an_error_without_python(frame: bytes) -> None:
    try:
        CBOR.to_json(frame)
    except SessiondError as error:
        text = error.message
        assert not PYTHON.search(text) and not LIBRARIES.search(text) and text.isprintable(), text


@given(st.binary(max_size=60))
@example(b'{"jsonrpc":"2.0","id":1,"method":"\xff"}')
@example(b'[{"a":"\xff"}')
@example(b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b',"method":"x"}')
def test_invalid_json_gets_an_error_without_python(message: bytes) -> None:
    for read in (parse, split_batch):
        try:
            read(message, 64)
        except MessageError as bad:
            text = re.sub("`(int|str)`", "", bad.error.message)  # the type names of the protocol's schema
            assert not PYTHON.search(text) and not LIBRARIES.search(text), text


@given(st.sampled_from([1002, 1007]), st.text())
def test_the_reason_of_a_websocket_close_is_a_sentence_for_any_error_of_the_library(code: int, texts: str) -> None:
    for begin in ("", "CLOSE ", "expected CONTINUATION, got <Opcode.TEXT: 1>", "'utf-8' codec can't decode"):
        words = reason_of_close(code, begin + texts)
        assert not PYTHON.search(words) and not LIBRARIES.search(words) and words.endswith(".") and len(words) <= 123


@pytest.mark.parametrize("digits", ["9" * 5000, "1_" + "0" * 5000])
def test_a_number_with_too_many_digits_is_an_error_at_its_line(digits: str) -> None:
    with pytest.raises(ConfigError) as raised:
        config.parse(f"[limits]\nmaxInFlight={digits}\nmaxFrameBytes=1\n")
    assert str(raised.value) == "config.toml:2: this is not TOML: it has a number of too many digits"


BAD_PATTERNS = {
    "x{4294967296}": "a number that is too large",
    "x{" + "9" * 5000 + "}": "a number that is too large",
    "(" * 4000 + ")" * 4000: "it is too deep",
    "(": "is not a regular expression: missing ), unterminated subpattern",
    "(a+)+": "repeats a repetition",
}


@check_each("pattern", BAD_PATTERNS, ids=lambda pattern: pattern[:12])
def test_an_invalid_pattern_is_an_error_of_the_configuration(pattern: str) -> None:
    text = f"[tools.sessions]\nredact = true\nredactPatterns = ['x', '{pattern}']\n"
    with pytest.raises(ConfigError) as raised:
        config.parse(text)
    assert str(raised.value).startswith("config.toml:3: tools.sessions.redactPatterns[1] ")
    assert BAD_PATTERNS[pattern] in str(raised.value)
    with pytest.raises(ConfigError, match=re.escape(BAD_PATTERNS[pattern])):
        compile_patterns((pattern,))


@given(st.text(alphabet=r"(){}[]|*+?.\^$,:=!<>#-0189xPaZ'", max_size=40))
def test_every_text_is_a_valid_pattern_or_is_refused_with_a_sentence(pattern: str) -> None:
    """A pattern that the configuration accepts can be compiled by every later use."""
    try:
        compile_pattern(pattern)
    except ValueError:
        with pytest.raises(ConfigError):
            compile_patterns((pattern,))
    else:
        assert len(compile_patterns((pattern,))) == 1


def test_a_count_is_followed_by_singular_or_plural() -> None:
    assert [pluralize(count, "session") for count in (0, 1, 2)] == ["0 sessions", "1 session", "2 sessions"]
    assert [pluralize(count, "match", "matches") for count in (1, 2)] == ["1 match", "2 matches"]
