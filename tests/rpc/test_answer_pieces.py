"""An answer that is encoded in pieces equals the answer encoded at once, in JSON and in CBOR."""

from __future__ import annotations

import json
from typing import Any

import cbor2
import msgspec
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from sessiond.rpc import answer_pieces as pieces
from sessiond.rpc.codecs import CBOR, JSON
from sessiond.rpc.messages import encode_result

leaves = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=30)
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4))


class Row(msgspec.Struct, rename="camel"):
    row_name: str
    inner: Any = None


class Page(msgspec.Struct, rename="camel", omit_defaults=True):
    messages: list[msgspec.Raw]
    session_key: str
    rows: list[Row] = []
    has_more: bool = False


class Part(msgspec.Struct):
    before: list[int]
    data: bytes
    behind: str = ""


def pages() -> st.SearchStrategy[Page]:
    long = st.sampled_from((9_000, 70_000)).map("ö".__mul__)
    raw = st.builds(lambda value: msgspec.Raw(msgspec.json.encode(value)), values | long)
    rows = st.lists(st.builds(Row, st.text(), values), max_size=3)
    return st.builds(Page, st.lists(raw, max_size=12), st.text(), rows)


async def encode_answer(result: Any) -> bytes | pieces.AnswerText:
    return await pieces.encode_in_pieces(7, result, trio.lowlevel.checkpoint)


@settings(deadline=None)
@given(page=pages())
async def test_an_answer_encoded_in_pieces_is_the_same_answer(page: Page) -> None:
    whole = encode_result(7, page)
    made = await encode_answer(page)
    assert b"".join(pieces.frame_pieces(made, JSON)) == whole + b"\n"
    assert pieces.json_length(made) == len(whole)
    assert cbor2.loads(b"".join(pieces.frame_pieces(made, CBOR))) == json.loads(whole)


@settings(deadline=None)
@given(found=st.lists(pages(), min_size=1, max_size=3))
async def test_a_batch_answer_encoded_in_pieces_is_the_same_answer(found: list[Page]) -> None:
    answers = [await encode_answer(page) for page in found] + [b'{"small":1}']
    whole = b"[" + b",".join([encode_result(7, page) for page in found] + [b'{"small":1}']) + b"]"
    assert b"".join(pieces.frame_pieces(answers, JSON)) == whole + b"\n"
    assert pieces.json_length(answers) == len(whole)
    assert cbor2.loads(b"".join(pieces.frame_pieces(answers, CBOR))) == json.loads(whole)


@settings(deadline=None)
@given(
    data=st.binary(max_size=400) | st.integers(0, 300_000).map(bytes),
    before=st.lists(st.integers(-9, 9), max_size=3),
    behind=st.text(max_size=9),
)
async def test_bytes_are_base64_in_json_and_themselves_in_cbor(data: bytes, before: list[int], behind: str) -> None:
    part = Part(before, data, behind)
    whole = encode_result(7, part)
    made = await encode_answer(part)
    assert b"".join(pieces.frame_pieces(made, JSON)) == whole + b"\n"
    assert pieces.json_length(made) == len(whole)
    got = cbor2.loads(b"".join(pieces.frame_pieces(made, CBOR)))
    assert got == {**json.loads(whole), "result": {"before": before, "data": data, "behind": behind}}


async def test_long_bytes_are_sent_in_pieces_and_not_copied() -> None:
    data = bytes(1_000_000)
    frames = list(pieces.frame_pieces(await encode_answer(Part([], data)), CBOR))
    assert max(map(len, frames)) <= 256 * 1024
    assert sum(len(frame) for frame in frames if isinstance(frame, memoryview) and frame.obj is data) == len(data)
    text = list(pieces.frame_pieces(await encode_answer(Part([], data)), JSON))
    assert max(map(len, text)) <= pieces.PIECE_BYTES


async def test_pieces_are_bounded_and_long_values_are_not_copied() -> None:
    message = msgspec.Raw(b'"' + b"x" * 1_000_000 + b'"')
    made = await encode_answer(Page([message, *[msgspec.Raw(b"[1]")] * 50_000], "k"))
    frames = list(pieces.frame_pieces(made, JSON))
    assert max(map(len, frames)) <= 256 * 1024
    assert sum(isinstance(frame, memoryview) and frame.obj is memoryview(message).obj for frame in frames) == 4


async def test_other_tasks_run_between_the_pieces() -> None:
    turns = 0

    async def count_turn() -> None:
        nonlocal turns
        turns += 1

    await pieces.encode_in_pieces(7, Page([msgspec.Raw(b'"%b"' % (b"x" * 15_000))] * 100, "k"), count_turn)
    assert turns >= 20


async def test_short_lists_are_encoded_in_one_go_and_others_in_pieces() -> None:
    def raw(size: int) -> msgspec.Raw:
        return msgspec.Raw(b'"%b"' % (b"x" * (size - 2)))

    half = pieces.SHORT_BYTES // 2
    row = Row("", "x" * half)
    rest = pieces.SHORT_BYTES - len(msgspec.json.encode([row]))
    for short in (Page([raw(half), raw(half)], "k"), Page([raw(rest)], "k", [row])):
        assert await encode_answer(short) == encode_result(7, short)
    for long in (Page([raw(half), raw(half + 1)], "k"), Page([raw(rest + 1)], "k", [row])):
        made = await encode_answer(long)
        assert isinstance(made, pieces.AnswerText)
        assert b"".join(made.json()) == encode_result(7, long)
