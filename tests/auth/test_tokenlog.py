"""The log of tokens: what it remembers, what a torn file costs, and what may be forgotten."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.auth.tokenlog import TokenLog, TokenRow
from sessiond.auth.tokens import Claims
from sessiond.errors import InvalidParams

A, B, C = "a" * 32, "b" * 32, "c" * 32


def claims(token_id: str, issued: int = 1000, expires: int = 5000, **more: object) -> Claims:
    return Claims(id=token_id, scopes=("read",), issued_at_ms=issued, expires_at_ms=expires, **more)


def test_a_tokens_life_is_two_lines_without_the_token() -> None:
    log = TokenLog()
    issued = log.issue(claims(A, session_key="agent:main:main", agent_id="main", run_id="r1", sandboxed=True))
    revoked = log.revoke(A, 2000)
    assert json.loads(issued) == {
        "type": "issued",
        "id": A,
        "scopes": ["read"],
        "sandboxed": True,
        "issuedAt": 1000,
        "expiresAt": 5000,
        "sessionKey": "agent:main:main",
        "agentId": "main",
        "runId": "r1",
    }
    assert revoked == b'{"type":"revoked","id":"' + A.encode() + b'","at":2000}\n'
    assert log.revoke(A, 3000) is None


def test_the_rows_are_newest_first_and_say_what_was_revoked() -> None:
    log = TokenLog()
    log.issue(claims(A, issued=1))
    log.issue(claims(B, issued=2, session_key="agent:main:main"))
    log.revoke(A, 3)
    assert log.rows() == [
        TokenRow(
            id=B,
            scopes=("read",),
            issued_at=2,
            expires_at=5000,
            session_key="agent:main:main",
            sandboxed=False,
            revoked=False,
        ),
        TokenRow(id=A, scopes=("read",), issued_at=1, expires_at=5000, sandboxed=False, revoked=True),
    ]


def test_a_file_read_again_is_the_same_log() -> None:
    log = TokenLog()
    written = log.issue(claims(A)) + log.issue(claims(B, run_id="r")) + (log.revoke(A, 9) or b"")
    again = TokenLog.parse(written)
    assert (again.rows(), again.skipped) == (log.rows(), 0)
    assert [again.is_revoked(x) for x in (A, B, C)] == [True, False, False]
    assert [again.knows(x) for x in (A, B, C)] == [True, True, False]


def test_bad_lines_cost_themselves_alone() -> None:
    log = TokenLog()
    first, second = log.issue(claims(A)), log.revoke(A, 9) or b""
    bad = [b"", b"{", b"null", b'{"type":"other"}', b'{"type":"revoked"}', b"\xff\xfe", b"[" * 5000, first[:20]]
    again = TokenLog.parse(b"\n".join([*bad, first, *bad, second, b"torn"]))
    assert (again.rows(), again.skipped) == (log.rows(), 15)


def test_a_revocation_counts_for_an_id_the_log_does_not_know() -> None:
    log = TokenLog()
    assert log.revoke(C, 5)
    assert log.is_revoked(C) and not log.knows(C) and log.rows() == []


@pytest.mark.parametrize("token_id", ["", "a" * 31, "a" * 33, "A" * 32, "g" * 32, "a" * 32 + "\n", "../" * 10])
def test_only_ids_can_be_revoked(token_id: str) -> None:
    with pytest.raises(InvalidParams, match="32 hex digits"):
        TokenLog().revoke(token_id, 1)


def test_what_has_expired_is_forgotten_and_unknown_revocations_stay() -> None:
    log = TokenLog()
    log.issue(claims(A, expires=100))
    log.issue(claims(B, expires=101))
    for token_id in (A, B, C):
        log.revoke(token_id, 50)
    again = TokenLog.parse(log.compact(100))
    assert [row.id for row in again.rows()] == [row.id for row in log.rows()] == [B]
    assert [again.is_revoked(x) for x in (A, B, C)] == [False, True, True]
    assert len(again) == len(log) == 3


@given(
    st.lists(st.tuples(st.sampled_from("ir"), st.sampled_from([A, B, C]), st.integers(0, 9)), max_size=20),
    st.integers(0, 9),
)
def test_a_live_token_that_was_revoked_stays_so_through_restart_and_compaction(
    steps: list[tuple[str, str, int]], now: int
) -> None:
    log, written = TokenLog(), b""
    for kind, token_id, at in steps:
        written += log.issue(claims(token_id, expires=at)) if kind == "i" else log.revoke(token_id, at) or b""
    revoked = {token_id for kind, token_id, _ in steps if kind == "r"}
    again = TokenLog.parse(written)
    assert again.rows() == log.rows()
    live = {row.id for row in again.rows() if row.expires_at > now}
    compacted = TokenLog.parse(again.compact(now))
    assert {row.id for row in compacted.rows()} == live
    assert {x for x in (A, B, C) if compacted.is_revoked(x)} >= revoked & live


@given(st.binary(max_size=200))
def test_any_bytes_are_a_log(data: bytes) -> None:
    assert TokenLog.parse(data).skipped <= data.count(b"\n") + 1
