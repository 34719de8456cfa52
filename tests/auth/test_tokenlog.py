"""The token log: what it remembers, what a torn file loses, and what may be forgotten."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.auth.tokenlog import Issue, Revocation, TokenLog, TokenRow, encode
from sessiond.auth.tokens import MAX_SKEW_MS, MAX_TTL_SECONDS, Claims
from sessiond.errors import InvalidParams

A, B, C = "a" * 32, "b" * 32, "c" * 32


def claims(token_id: str, issued: int = 1000, expires: int = 5000, **more: object) -> Claims:
    return Claims(id=token_id, scopes=("read",), issued_at_ms=issued, expires_at_ms=expires, **more)


def issue(log: TokenLog, *args: object, **more: object) -> bytes:
    """Issue a token, apply it to the log, and return its line as written to disk."""
    return apply_line(log, log.issue(claims(*args, **more)))


def revoke(log: TokenLog, token_id: str, now_ms: int) -> bytes:
    line = log.revoke(token_id, now_ms)
    return apply_line(log, line) if line is not None else b""


def apply_line(log: TokenLog, line: Issue | Revocation) -> bytes:
    log.take(line)
    return encode(line)


def test_an_issue_or_revocation_has_no_effect_before_it_is_on_disk() -> None:
    log = TokenLog()
    line = log.issue(claims(A))
    assert not log.has(A) and log.rows() == []
    log.take(line)
    assert log.revoke(A, 5) == log.revoke(A, 5)
    assert not log.is_revoked(A)


def test_a_token_leaves_an_issue_line_and_a_revoke_line_without_its_text() -> None:
    log = TokenLog()
    issued = issue(log, A, session_key="agent:main:main", agent_id="main", run_id="r1", sandboxed=True)
    revoked = revoke(log, A, 2000)
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
    assert revoked == b'{"type":"revoked","id":"' + A.encode() + b'","at":2000,"expiresAt":5000}\n'
    assert log.revoke(A, 3000) is None


def test_the_rows_are_newest_first_and_show_what_was_revoked() -> None:
    log = TokenLog()
    issue(log, A, issued=1)
    issue(log, B, issued=2, session_key="agent:main:main")
    revoke(log, A, 3)
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


def test_reading_the_file_again_gives_the_same_log() -> None:
    log = TokenLog()
    written = issue(log, A) + issue(log, B, run_id="r") + revoke(log, A, 9)
    again = TokenLog.parse(written)
    assert again.rows() == log.rows()
    assert [again.is_revoked(x) for x in (A, B, C)] == [True, False, False]
    assert [again.has(x) for x in (A, B, C)] == [True, True, False]


def test_a_bad_line_does_not_affect_other_lines() -> None:
    log = TokenLog()
    first, second = issue(log, A), revoke(log, A, 9)
    bad = [b"", b"{", b"null", b'{"type":"other"}', b'{"type":"revoked"}', b"\xff\xfe", b"[" * 5000, first[:20]]
    again = TokenLog.parse(b"\n".join([*bad, first, *bad, second, b"torn"]))
    assert again.rows() == log.rows()


def test_a_token_unknown_to_the_log_can_be_revoked() -> None:
    log = TokenLog()
    assert revoke(log, C, 5)
    assert log.is_revoked(C) and not log.has(C) and log.rows() == []


@check_each("token_id", ["", "a" * 31, "a" * 33, "A" * 32, "g" * 32, "a" * 32 + "\n", "../" * 10])
def test_a_malformed_id_cannot_be_revoked(token_id: str) -> None:
    with pytest.raises(InvalidParams, match="32 hex digits"):
        TokenLog().revoke(token_id, 1)


def test_expired_tokens_are_forgotten_and_their_revocations_a_little_later() -> None:
    log = TokenLog()
    issue(log, A, expires=100)
    issue(log, B, expires=101)
    for token_id in (A, B, C):
        revoke(log, token_id, 50)
    assert [row.id for row in log.drop_expired(100).rows()] == [B]
    assert len(log) == 5, "the log itself stays as it is"
    for now, left in ((99 + MAX_SKEW_MS, {A, B, C}), (100 + MAX_SKEW_MS, {B, C}), (101 + MAX_SKEW_MS, {C})):
        again = TokenLog.parse(log.drop_expired(now).encode())
        assert {x for x in (A, B, C) if again.is_revoked(x)} == left


def test_the_revocation_of_an_unknown_token_is_kept_for_the_longest_lifetime() -> None:
    log = TokenLog()
    revoke(log, C, 50)
    last = 50 + MAX_TTL_SECONDS * 1000 + MAX_SKEW_MS
    assert log.drop_expired(last - 1).is_revoked(C)
    assert not log.drop_expired(last).is_revoked(C)


def test_the_file_is_due_for_compaction_when_half_of_it_is_obsolete() -> None:
    log = TokenLog()
    for number in range(15):
        issue(log, f"{number:032x}", expires=100)
    assert not log.is_outgrown(100), "a few lines are left alone"
    for number in range(15, 30):
        issue(log, f"{number:032x}", expires=200)
    assert not log.is_outgrown(99)
    assert log.is_outgrown(100)
    assert not log.drop_expired(100).is_outgrown(100)
    assert not TokenLog.parse(log.drop_expired(100).encode()).is_outgrown(100)


@given(
    st.lists(st.tuples(st.sampled_from("ir"), st.sampled_from([A, B, C]), st.integers(0, 9)), max_size=20),
    st.integers(0, 9),
)
def test_a_revoked_token_stays_revoked_through_restart_and_compaction(
    steps: list[tuple[str, str, int]], now: int
) -> None:
    log, written = TokenLog(), b""
    for kind, token_id, at in steps:
        written += issue(log, token_id, expires=at) if kind == "i" else revoke(log, token_id, at)
    revoked = {token_id for kind, token_id, _ in steps if kind == "r"}
    again = TokenLog.parse(written)
    assert again.rows() == log.rows()
    live = {row.id for row in again.rows() if row.expires_at > now}
    compacted = TokenLog.parse(again.drop_expired(now).encode())
    assert {row.id for row in compacted.rows()} == live
    assert {x for x in (A, B, C) if compacted.is_revoked(x)} >= revoked & live


@given(st.binary(max_size=200))
def test_any_bytes_can_be_read_as_a_log(data: bytes) -> None:
    assert TokenLog.parse(data).rows() == []


@check_each("before", [b" ", b"\t ", b'{"x":"%b"}\n' % (b"x" * 100_000)])
@check_each("inside", [b"", b'"note":"%b",' % (b"x" * 100_000)])
def test_a_line_counts_however_long_and_indented(before: bytes, inside: bytes) -> None:
    log = TokenLog()
    written = issue(log, A) + before + revoke(log, A, 9).replace(b"{", b"{" + inside, 1)
    assert TokenLog.parse(written).is_revoked(A)


def test_lines_that_are_no_tokens_cost_next_to_nothing() -> None:
    dense = b"{%b}\n" % b",".join([b'"a":[]'] * 500_000)
    began = time.thread_time()
    assert TokenLog.parse(b"[]\n" * 2_000_000 + dense).rows() == []
    assert time.thread_time() - began < 0.5  # decoding them takes three seconds


def test_whether_a_long_log_is_outgrown_is_not_looked_for_at_each_line() -> None:
    log = TokenLog()
    for number in range(4096):
        log.take(Issue(id=f"{number:032x}", scopes=("list",), sandboxed=False, issued_at=0, expires_at=100))
    looks = 0
    for number in range(4096):
        log.take(Revocation(f"{number:032x}", 0, 100))
        before = log._next_look
        assert log.is_outgrown(99) is False
        looks += log._next_look != before
    assert 1 < looks < 10
    for _ in range(2000):
        log.take(Revocation(f"{0:032x}", 0, 100))
    assert log.is_outgrown(200 + MAX_SKEW_MS)


def test_tokens_minted_by_a_revoked_token_stay_revoked_through_restart_and_compaction() -> None:
    log = TokenLog()
    lines = [
        apply_line(log, log.issue(claims(A))),
        apply_line(log, log.issue(claims(B), A)),
        apply_line(log, log.issue(claims(C), B)),
    ]
    assert json.loads(lines[1])["parent"] == A and "parent" not in json.loads(lines[0])
    lines.append(revoke(log, A, 2000))
    late = "d" * 32
    lines.append(apply_line(log, log.issue(claims(late), C)))
    alone = "e" * 32
    lines.append(issue(log, alone))
    for one in (log, TokenLog.parse(b"".join(lines)), TokenLog.parse(log.drop_expired(2000).encode())):
        assert {row.id for row in one.rows() if row.revoked} == {A, B, C, late}
        assert [one.is_revoked(token_id) for token_id in (A, B, C, late, alone)] == [True] * 4 + [False]
        assert one.revoke(C, 3000) is None
    # Their issue lines are gone by then, and the clock may have been set back.
    left = TokenLog.parse(log.drop_expired(5000).encode())
    assert [left.is_revoked(token_id) for token_id in (A, B, C, late)] == [True] * 4
    assert left.rows() == []


def test_revoking_a_minted_token_leaves_its_minter_valid() -> None:
    log = TokenLog()
    issue(log, A)
    apply_line(log, log.issue(claims(B), A))
    revoke(log, B, 2000)
    assert (log.is_revoked(A), log.is_revoked(B)) == (False, True)


@given(st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(0, 9)), max_size=20), st.integers(0, 9))
def test_revocation_reaches_all_descendants_for_any_parent_links(
    pairs: list[tuple[int, int | None]], revoked: int
) -> None:
    ids = [f"{number:032x}" for number in range(10)]
    log = TokenLog()
    for child, parent in pairs:
        apply_line(log, log.issue(claims(ids[child]), None if parent is None else ids[parent]))
    revoke(log, ids[revoked], 2000)
    dead = {revoked}
    for _ in range(10):
        dead |= {child for child, parent in pairs if parent in dead}
    assert [log.is_revoked(one) for one in ids] == [number in dead for number in range(10)]
