"""Commands and answers as bytes, in parts."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.link.command_ledger import KEPT_MS
from sessiond.link.command_wire import (
    MAX_AGE_MS,
    MAX_AHEAD_MS,
    MAX_PARTS,
    PART_BYTES,
    BadBody,
    CommandFile,
    CommandOrigin,
    MachineAnswer,
    MachineCommand,
    PartOf,
    decode_answer,
    decode_command,
    encode,
    split,
)

FILES = st.builds(CommandFile, st.text(max_size=9), st.binary(max_size=9), st.none() | st.text(max_size=9))
COMMANDS = st.builds(
    MachineCommand,
    method=st.sampled_from(["send", "spawn", "abort"]),
    target=st.text(max_size=9),
    message=st.text(max_size=50),
    origin=st.none() | st.builds(CommandOrigin, st.none() | st.text(max_size=9), st.none(), st.integers(0, 9)),
    files=st.lists(FILES, max_size=3).map(tuple),
    within_s=st.none() | st.floats(0, 1e9),
)
ANSWERS = st.builds(
    MachineAnswer,
    status=st.sampled_from(["ok", "error", "refused"]),
    reply=st.none() | st.text(max_size=50),
    error=st.none() | st.text(max_size=50),
    session_key=st.none() | st.text(max_size=9),
)


@given(COMMANDS)
def test_a_command_comes_out_as_it_went_in(command: MachineCommand) -> None:
    assert decode_command(b"".join(split(encode(command)))) == command


@given(ANSWERS)
def test_an_answer_comes_out_as_it_went_in(answer: MachineAnswer) -> None:
    assert decode_answer(b"".join(split(encode(answer)))) == answer


@pytest.mark.parametrize("within_s", [float("nan"), float("inf"), float("-inf")])
def test_a_time_limit_that_no_daemon_can_be_told_is_refused(within_s: float) -> None:
    with pytest.raises(BadBody, match="its time limit is no number"):
        decode_command(encode(MachineCommand(method="spawn", target="ops", within_s=within_s)))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_body_or_a_sentence(data: bytes) -> None:
    for decode in (decode_command, decode_answer):
        with suppress(BadBody):
            decode(data)


@pytest.mark.parametrize("size", [0, 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES])
def test_parts_have_the_size_and_lose_nothing(size: int) -> None:
    data = bytes(index % 251 for index in range(size))
    parts = split(data)
    assert b"".join(parts) == data
    assert len(parts) == max(1, -(-size // PART_BYTES)) and all(len(part) <= PART_BYTES for part in parts)


@pytest.mark.parametrize(
    ("fields", "is_one"),
    [
        ({}, True),
        ({"part": MAX_PARTS - 1, "parts": MAX_PARTS}, True),
        ({"part": MAX_PARTS, "parts": MAX_PARTS}, False),
        ({"part": 0, "parts": MAX_PARTS + 1}, False),
        ({"part": 0, "parts": 0}, False),
        ({"part": -1, "parts": 1}, False),
        ({"part": 2, "parts": 3}, True),
        ({"part": 3, "parts": 3}, False),
        ({"part": "0", "parts": 1}, False),
    ],
)
def test_numbers_of_parts_have_limits(fields: dict[str, object], is_one: bool) -> None:
    try:
        msgspec.convert(fields, PartOf)
    except msgspec.ValidationError:
        assert not is_one
    else:
        assert is_one


@pytest.mark.parametrize(
    ("age_ms", "is_taken"),
    [(0, True), (MAX_AGE_MS, True), (MAX_AGE_MS + 1, False), (-MAX_AHEAD_MS, True), (-MAX_AHEAD_MS - 1, False)],
)
def test_a_command_is_taken_while_it_is_known_whether_it_was_carried_out(age_ms: int, is_taken: bool) -> None:
    now_ms = 1_800_000_000_000
    assert PartOf(sent_at=now_ms - age_ms).is_of_now(now_ms) is is_taken
    assert MAX_AGE_MS + MAX_AHEAD_MS < KEPT_MS
