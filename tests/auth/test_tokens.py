"""Tokens: their claims, when they are valid, and that no forged token ever is."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.auth import cose
from sessiond.auth.keyring import SigningKey
from sessiond.auth.tokens import (
    EXPIRED,
    MAX_SKEW_MS,
    MAX_TOKEN_CHARS,
    NOT_OURS,
    NOT_YET,
    REVOKED,
    Claims,
    TokenVerifier,
    mint,
    read,
    verify,
)
from sessiond.errors import InvalidParams, Unauthenticated
from sessiond.model.caller import SCOPES, Caller

KEY = SigningKey(bytes(range(32)))
OTHER_STORE = SigningKey(bytes(range(1, 33)))
NOW = 1_700_000_000_500
MAIN = "agent:main:main"


def never(_: Claims) -> bool:
    return False


def mint_token(key: SigningKey = KEY, **changes: Any) -> tuple[str, Claims]:
    return mint(key, **{"scopes": ("read",), "now_ms": NOW, "session_key": MAIN, **changes})


def sign_claims(cwt: Any, key: SigningKey = KEY) -> str:
    return text_of(cose.sign(cose.encode(cwt), key.private))


def text_of(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def bytes_of(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def refusal(text: str, now_ms: int = NOW, is_revoked: Callable[[Claims], bool] = never) -> str:
    with pytest.raises(Unauthenticated) as caught:
        verify(text, KEY.public, now_ms, is_revoked)
    return caught.value.message


def test_a_token_with_every_claim_is_read_back_whole() -> None:
    text, claims = mint(
        KEY,
        scopes=("spawn", "list", "spawn"),
        now_ms=NOW,
        ttl_seconds=90.9,
        session_key=MAIN,
        agent_id="main",
        run_id="r1",
        sandboxed=True,
        random=lambda size: b"\x07" * size,
    )
    assert claims == Claims(
        id="07" * 16,
        scopes=("list", "spawn"),
        issued_at_ms=1_700_000_000_000,
        expires_at_ms=1_700_000_090_000,
        session_key=MAIN,
        agent_id="main",
        run_id="r1",
        sandboxed=True,
    )
    assert read(text, KEY.public) == claims
    assert verify(text, KEY.public, NOW, never) == Caller(
        kind="token",
        scopes=frozenset({"list", "spawn"}),
        session_key=MAIN,
        agent_id="main",
        run_id="r1",
        sandboxed=True,
        token_id="07" * 16,
        expires_at_ms=1_700_000_090_000,
    )


def test_a_token_is_a_cwt_with_the_registered_claims() -> None:
    text, claims = mint_token(scopes=SCOPES, agent_id="main", run_id="r1")
    message = cose.verify(bytes_of(text), KEY.public)
    assert (message.protected, message.unprotected) == ({1: -8}, {})
    assert cose.decode(message.payload) == {
        1: "sessiond",
        2: MAIN,
        4: 1_700_003_600,
        6: 1_700_000_000,
        7: bytes.fromhex(claims.id),
        -70001: "main",
        -70002: "r1",
        -70003: False,
        -70004: ["list", "read", "send", "spawn", "answer", "admin"],
    }
    assert text.startswith("0oRDoQEnoF")
    assert not set(text) - set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def test_the_callers_agent_is_the_agent_of_the_tokens_session() -> None:
    assert verify(mint_token(session_key="agent:ops:main")[0], KEY.public, NOW, never).agent_id == "ops"
    adapter = verify(mint_token(session_key=None, agent_id="ops")[0], KEY.public, NOW, never)
    assert (adapter.session_key, adapter.agent_id) == (None, "ops")


def test_every_token_has_its_own_id() -> None:
    assert len({mint_token()[1].id for _ in range(100)}) == 100


@check_each(
    ("changes", "sentence"),
    [
        ({"scopes": ("read", "root")}, r"\$\.scopes: 'root' is no scope"),
        ({"agent_id": "../x", "session_key": None}, r"\$\.agentId is no agent id"),
        ({"agent_id": "ops"}, r"\$\.agentId: agent:main:main is not a session of agent ops"),
        ({"ttl_seconds": float("nan")}, r"\$\.ttlSeconds is not a number"),
    ],
)
def test_a_token_that_cannot_be_minted_is_refused_with_the_reason(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidParams, match=sentence):
        mint_token(**changes)


@check_each(
    ("ttl", "seconds"),
    [(0, 1), (-5, 1), (0.5, 1), (1, 1), (1.9, 1), (315_360_000, 315_360_000), (float("inf"), 315_360_000)],
)
def test_the_time_to_live_is_rounded_down_and_clamped(ttl: float, seconds: int) -> None:
    claims = mint_token(ttl_seconds=ttl)[1]
    assert claims.expires_at_ms - claims.issued_at_ms == seconds * 1000


def test_a_token_is_valid_until_its_last_millisecond() -> None:
    text, claims = mint_token()
    assert verify(text, KEY.public, claims.expires_at_ms - 1, never)
    assert refusal(text, claims.expires_at_ms) == EXPIRED


def test_a_clock_set_back_a_little_is_tolerated() -> None:
    text, claims = mint_token()
    assert verify(text, KEY.public, claims.issued_at_ms - MAX_SKEW_MS, never)
    assert refusal(text, claims.issued_at_ms - MAX_SKEW_MS - 1) == NOT_YET


def test_a_revoked_token_is_refused() -> None:
    text, claims = mint_token()
    assert refusal(text, is_revoked=lambda shown: shown == claims) == REVOKED
    assert read(text, KEY.public) == claims


def test_a_token_of_another_store_is_refused() -> None:
    assert refusal(mint_token(OTHER_STORE)[0]) == NOT_OURS


GOOD_CWT = {1: "sessiond", 2: MAIN, 4: 1_700_003_600, 6: 1_700_000_000, 7: b"x" * 16, -70003: False, -70004: ["read"]}


def test_a_token_with_the_unchanged_claims_is_valid() -> None:
    assert verify(sign_claims(GOOD_CWT), KEY.public, NOW, never).scopes == {"read"}


@check_each(
    "change",
    [
        {1: "other"},
        {1: None},
        {2: "main"},
        {2: 5},
        {2: b"agent:main:main"},
        {4: None},
        {4: 1_700_003_600.5},
        {4: "1700003600"},
        {4: True},
        {6: None},
        {7: None},
        {7: "x" * 16},
        {-70001: 1},
        {-70002: b"r"},
        {-70003: None},
        {-70003: 0},
        {-70004: None},
        {-70004: "read"},
        {-70004: ["root"]},
        {-70004: [1]},
        {-70005: 1},
        {5: 1},
        {"sub": MAIN},
    ],
    ids=str,
)
def test_signed_claims_in_an_unexpected_form_are_refused(change: dict[Any, Any]) -> None:
    cwt = {claim: value for claim, value in (GOOD_CWT | change).items() if value is not None}
    assert refusal(sign_claims(cwt)) == NOT_OURS


@check_each("cwt", [[], "x", 5, None, {}], ids=str)
def test_a_signed_payload_that_is_not_claims_is_refused(cwt: Any) -> None:
    assert refusal(sign_claims(cwt)) == NOT_OURS


def forgeries() -> dict[str, str]:
    text = mint_token()[0]
    raw = bytes_of(text)
    payload, signature = cose.parse(raw).payload, raw[-64:]

    def message(*parts: Any) -> str:
        import cbor2

        return text_of(cose.encode(cbor2.CBORTag(18, list(parts))))

    eddsa = cose.encode({1: -8})
    return {
        "empty": "",
        "a word": "token",
        "blank around": f" {text} ",
        "newline": text + "\n",
        "padded": text + "=",
        "standard alphabet": base64.b64encode(raw + b"\xff\xff").decode(),
        "not ascii": "é" * 40,
        "surrogate": "\ud800",
        "a JWT with alg none": "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZ2VudDptYWluOm1haW4ifQ.",
        "alg none": message(cose.encode({1: 0}), {}, payload, b""),
        "alg ES256": message(cose.encode({1: -7}), {}, payload, signature),
        "alg HMAC": message(cose.encode({1: 5}), {}, payload, signature),
        "alg unprotected": message(b"", {1: -8}, payload, signature),
        "no signature": message(eddsa, {}, payload, b""),
        "zero signature": message(eddsa, {}, payload, b"\0" * 64),
        "key id beside it": message(eddsa, {4: b"11"}, payload, signature),
        "content type beside it": message(eddsa, {3: 61}, payload, signature),
        "another payload": message(eddsa, {}, cose.encode(GOOD_CWT), signature),
        "bytes behind": text_of(raw + b"\0"),
        "twice": text_of(raw + raw),
        "torn": text_of(raw[:-1]),
        "in a CWT tag": text_of(b"\xd8\x3d" + raw),
    }


@check_each("text", forgeries().values(), ids=forgeries().keys())
def test_every_forgery_is_refused_with_the_same_sentence(text: str) -> None:
    assert refusal(text) == NOT_OURS


def test_the_size_limit_is_checked_before_anything_is_decoded() -> None:
    assert refusal("A" * MAX_TOKEN_CHARS) == refusal("A" * (MAX_TOKEN_CHARS + 1)) == NOT_OURS
    longest = mint_token(session_key="agent:main:" + "x" * 501, agent_id="main", run_id="r" * 36, scopes=SCOPES)[0]
    assert len(longest) < MAX_TOKEN_CHARS
    assert verify(longest, KEY.public, NOW, never)


TEXT = mint_token()[0]


@given(at=st.integers(0, len(bytes_of(TEXT)) - 1), bits=st.integers(1, 255))
def test_one_changed_byte_anywhere_is_refused(at: int, bits: int) -> None:
    raw = bytearray(bytes_of(TEXT))
    raw[at] ^= bits
    assert refusal(text_of(bytes(raw))) == NOT_OURS


@given(at=st.integers(0, len(TEXT) - 1), other=st.characters(max_codepoint=255))
def test_one_changed_character_anywhere_is_refused(at: int, other: str) -> None:
    changed = TEXT[:at] + other + TEXT[at + 1 :]
    if changed != TEXT:
        assert refusal(changed) == NOT_OURS


@pytest.mark.parametrize("spare_bits", [2, 4])
def test_a_token_with_other_spare_bits_is_refused(spare_bits: int) -> None:
    """The last base64 character has unused bits; with other values there the text would decode to the same bytes."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    texts = (mint_token(run_id="r" * length)[0] for length in range(1, 4))
    text = next(text for text in texts if len(text) % 4 == (3 if spare_bits == 2 else 2))
    for other in range(1, 1 << spare_bits):
        twin = text[:-1] + letters[letters.index(text[-1]) + other]
        assert bytes_of(twin) == bytes_of(text)
        assert refusal(twin) == NOT_OURS
    assert verify(text, KEY.public, NOW, never)


@given(st.text() | st.binary(max_size=300).map(text_of) | st.binary(max_size=99).map(lambda x: TEXT[:10] + text_of(x)))
def test_no_text_raises_anything_but_unauthenticated(text: str) -> None:
    assert refusal(text) == NOT_OURS


@given(
    scopes=st.sets(st.sampled_from(SCOPES)).map(tuple),
    session_key=st.none() | st.text(min_size=1, max_size=80).map(lambda rest: f"agent:main:{rest}"),
    run_id=st.none() | st.text(max_size=40),
    sandboxed=st.booleans(),
    ttl=st.integers(1, 10**9),
)
def test_every_token_is_read_back_with_its_claims(
    scopes: tuple[str, ...], session_key: str | None, run_id: str | None, sandboxed: bool, ttl: int
) -> None:
    text, claims = mint(
        KEY,
        scopes=scopes,
        now_ms=NOW,
        ttl_seconds=ttl,
        session_key=session_key,
        run_id=run_id,
        sandboxed=sandboxed,
    )
    assert read(text, KEY.public) == claims
    assert set(claims.scopes) == set(scopes)


class VerifierBench:
    """A verifier with a clock and a set of revoked ids that the test controls."""

    def __init__(self, capacity: int = 4) -> None:
        self.now = NOW
        self.revoked: set[str] = set()
        self.verifier = TokenVerifier(
            KEY.public, wall_ms=lambda: self.now, is_revoked=lambda claims: claims.id in self.revoked, capacity=capacity
        )

    def token_id_or_refusal(self, text: str) -> str:
        try:
            return str(self.verifier.authenticate(text).token_id)
        except Unauthenticated as error:
            return error.message


def test_a_cached_token_is_still_checked_for_revocation() -> None:
    bench, (text, claims) = VerifierBench(), mint_token()
    assert [bench.token_id_or_refusal(text), bench.token_id_or_refusal(text)] == [claims.id, claims.id]
    bench.revoked.add(claims.id)
    assert (bench.token_id_or_refusal(text), len(bench.verifier)) == (REVOKED, 0)


def test_a_cached_token_still_expires() -> None:
    bench, (text, claims) = VerifierBench(), mint_token()
    assert bench.token_id_or_refusal(text) == claims.id
    bench.now = claims.expires_at_ms
    assert (bench.token_id_or_refusal(text), len(bench.verifier)) == (EXPIRED, 0)


def test_bad_tokens_are_not_cached_and_good_ones_up_to_the_capacity() -> None:
    bench = VerifierBench()
    tokens = [mint_token()[0] for _ in range(6)]
    for text in [*tokens, *forgeries().values()]:
        bench.token_id_or_refusal(text)
    assert len(bench.verifier) == 4
    assert bench.token_id_or_refusal(tokens[0]) == read(tokens[0], KEY.public).id


def test_a_cached_token_costs_far_less_than_a_signature() -> None:
    bench, text = VerifierBench(), mint_token()[0]
    bench.verifier.authenticate(text)
    started = time.process_time()
    for _ in range(2000):
        bench.verifier.authenticate(text)
    # A signature costs some 150 us; a look-up, 2.
    assert (time.process_time() - started) / 2000 < 40e-6
