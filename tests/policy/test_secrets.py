"""Which texts are masked as secrets, what is left of them, and that no text makes the search slow."""

from __future__ import annotations

import json
import sys
import time
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each
from support.sampling import amount, spread

from sessiond.errors import ConfigError
from sessiond.policy.redact import compile_patterns, mask_message, mask_secrets
from sessiond.policy.secrets import mask, names_secret

LONG = "abcdefghijklmnopqrstuvwxyz0123456789"
PEM = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\nAAAAB3Nz\n-----END OPENSSH PRIVATE KEY-----"

MASKED = [
    (f"API_KEY={LONG}", "API_KEY=abcdef…6789"),
    ("api-key: hunter2", "api-key: ***"),
    ('export DB_PASSWORD="correct horse battery"', 'export DB_PASSWORD="correc…tery"'),
    ("password = 'it''s'", "password = '***''s'"),
    ('{"token": "short", "n": 1}', '{"token": "***", "n": 1}'),
    ('{"refreshToken":"a\\"b"}', '{"refreshToken":"***"}'),
    (r"{\"apiKey\":\"" + LONG + r"\"}", r"{\"apiKey\":\"abcdef…6789\"}"),
    ("STRIPE_KEY=abc", "STRIPE_KEY=***"),
    ("aws_secret_access_key = abc/def+ghi", "aws_secret_access_key = ***"),
    ("?access_token=abc&x=1", "?access_token=***&x=1"),
    ("--api-key abc123 --verbose yes", "--api-key *** --verbose yes"),
    ("--password=abc", "--password=***"),
    (f"Authorization: Bearer {LONG}", "Authorization: Bearer abcdef…6789"),
    ('-H "authorization: Basic dXNlcjpw" http://x', '-H "authorization: Basic ***" http://x'),
    ("{'Authorization': 'abc'}", "{'Authorization': '***'}"),
    ("Authorization: AWS4 Credential=a/b, Signature=cc\nHost: x", "Authorization: AWS4 C…e=cc\nHost: x"),
    (f"uses bearer {LONG}.", "uses bearer abcdef…789."),
    ("Set-Cookie: sid=abc; Path=/\nHost: x", "Set-Cookie: ***\nHost: x"),
    ("postgres://user:hunter2@host/db", "postgres://user:***@host/db"),
    (f"x\n{PEM}\ny", "x\n-----BEGIN OPENSSH PRIVATE KEY-----\n***\n-----END OPENSSH PRIVATE KEY-----\ny"),
    (PEM.replace("\n", "\\n"), "-----BEGIN OPENSSH PRIVATE KEY-----\\n***\\n-----END OPENSSH PRIVATE KEY-----"),
    ("-----BEGIN PRIVATE KEY-----\nMIIE", "-----BEGIN PRIVATE KEY-----\n***"),
    (f"(sk-ant-{LONG})", "(sk-ant…6789)"),
    (f"ghp_{LONG}", "ghp_ab…6789"),
    (f"gho_{LONG}", "gho_ab…6789"),
    (f"github_pat_{LONG}", "github…6789"),
    (f"glpat-{LONG}", "glpat-…6789"),
    ("xoxb-123456789012-abcdef", "xoxb-1…cdef"),
    (f"AIzaSy{LONG}", "AIzaSy…6789"),
    (f"gsk_{LONG}", "gsk_ab…6789"),
    (f"npm_{LONG}", "npm_ab…6789"),
    (f"pypi-{LONG}", "pypi-a…6789"),
    (f"hf_{LONG}", "hf_abc…6789"),
    ("AKIAIOSFODNN7EXAMPLE", "AKIAIO…MPLE"),
    (f"sk_live_{LONG}", "sk_live…6789"),
    (f"bot123456789:AA{LONG}", "bot123456789:AAabcd…6789"),
    (f"eyJ{LONG}.eyJ{LONG}.sig-nature", "eyJabc…ture"),
    (f"token 0oRDoQEn{LONG}{LONG}", "token 0oRDoQ…6789"),
    (f"İİ TOKEN={LONG} İ", "İİ TOKEN=abcdef…6789 İ"),
]

LEFT_ALONE = [
    "sessionKey: agent:main:main",
    '{"idempotencyKey": "abc", "key": "agent:main:main"}',
    "totalTokens: 512, maxToken: 4096",
    "def login(token: str, password: Optional) -> None:",
    "task-force-of-the-risk-management-department",
    "authorization: the user must log in first",
    "a secret is kept by two",
    "the passwords: none",
    "--verbose yes --token",
    "http://localhost:8080/a@b",
    "12:30:59 and 123456:ABC",
    "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----",
    "",
]


@check_each(("text", "masked"), MASKED, ids=[text[:24] for text, _ in MASKED])
def test_secrets_are_masked_and_the_rest_is_unchanged(text: str, masked: str) -> None:
    assert mask_secrets(text) == (masked, True)


@check_each("text", LEFT_ALONE)
def test_text_without_secrets_is_unchanged(text: str) -> None:
    result, changed = mask_secrets(text)
    assert result is text and not changed


@check_each(("text", "masked"), MASKED, ids=[text[:24] for text, _ in MASKED])
def test_masking_masked_text_changes_nothing(text: str, masked: str) -> None:
    assert mask_secrets(masked)[0] in (masked, masked.replace("dXNlcjpw", "***"))


def test_short_secrets_are_removed_and_long_ones_keep_their_ends() -> None:
    assert (mask("x" * 17), mask("123456" + "x" * 8 + "7890")) == ("***", "123456…7890")


def test_overlapping_matches_are_masked_as_one() -> None:
    assert mask_secrets(f'token = "Bearer {LONG} and ghp_{LONG}"') == ('token = "Bearer…6789"', True)


def test_configured_patterns_are_masked_too() -> None:
    patterns = compile_patterns((r"CORP-\d+", r"pin=(\d{4})"))
    assert mask_secrets("CORP-12345 pin=1234", patterns) == ("*** pin=***", True)
    assert mask_secrets("corp", patterns) == ("corp", False)


@check_each("pattern", ["(", "(a+)+", "(?:a*)*b", "(x{2,})+", "[z-a]"])
def test_invalid_patterns_and_those_that_can_hang_are_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"tools\.sessions\.redactPatterns"):
        compile_patterns((pattern,))


def test_patterns_with_escaped_characters_are_accepted() -> None:
    assert len(compile_patterns((r"(a\+)+", "(ab)+", ""))) == 3
    assert mask_secrets("xyz", compile_patterns(("", "q*"))) == ("xyz", False)


@check_each(
    ("name", "secret"),
    [
        ("token", True),
        ("refreshToken", True),
        ("DB_PASSWORD", True),
        ("x-api-key", True),
        ("apikey", True),
        ("Authorization", True),
        ("client_secret", True),
        ("credentials", True),
        ("sessionKey", False),
        ("key", False),
        ("totalTokens", False),
        ("tokenCount", False),
        ("name", False),
    ],
)
def test_field_names_are_recognised_as_secret_or_not(name: str, secret: bool) -> None:
    assert names_secret(name) is secret


# --- messages --------------------------------------------------------------------------------------------------


def mask_message_dict(message: Any, **options: Any) -> Any:
    raw, changed = mask_message(json.dumps(message).encode(), **options)
    assert changed
    return json.loads(raw)


def test_every_part_of_a_message_is_masked() -> None:
    message = {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "token=abcdef"},
            {"type": "thinking", "thinking": f"it is ghp_{LONG}"},
            {"type": "toolCall", "name": "http", "arguments": {"headers": {"Authorization": f"Bearer {LONG}"}, "n": 1}},
            {"type": "toolCall", "name": "login", "arguments": json.dumps({"password": 'a"b', "user": "ann"})},
            {"type": "toolCall", "name": "login", "input": {"credentials": {"user": "ann", "pin": 1, "list": ["x"]}}},
        ],
        "usage": {"input": 5, "totalTokens": 7},
    }
    assert mask_message_dict(message) == {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "token=***"},
            {"type": "thinking", "thinking": "it is ghp_ab…6789"},
            {"type": "toolCall", "name": "http", "arguments": {"headers": {"Authorization": "Bearer…6789"}, "n": 1}},
            {"type": "toolCall", "name": "login", "arguments": '{"password":"***","user":"ann"}'},
            {"type": "toolCall", "name": "login", "input": {"credentials": {"user": "***", "pin": 1, "list": ["***"]}}},
        ],
        "usage": {"input": 5, "totalTokens": 7},
    }


def test_tool_results_and_plain_content_are_masked() -> None:
    assert mask_message_dict({"role": "toolResult", "content": [{"type": "text", "text": PEM}]})["content"][0][
        "text"
    ] == ("-----BEGIN OPENSSH PRIVATE KEY-----\n***\n-----END OPENSSH PRIVATE KEY-----")
    assert mask_message_dict({"role": "user", "content": "secret: x"}) == {"role": "user", "content": "secret: ***"}
    assert (
        mask_message_dict({"role": "user", "content": "CORP-1"}, patterns=compile_patterns((r"CORP-\d",)))["content"]
        == "***"
    )


def test_a_message_without_secrets_keeps_its_bytes() -> None:
    raw = b'{ "role":"user",  "content":[{"type":"image","data":"AKIAIOSFODNN7EXAMPLE"},{"type":"text","text":"hi"}] }'
    result, changed = mask_message(raw)
    assert result is raw and not changed


def test_a_message_that_cannot_be_parsed_is_withheld() -> None:
    for raw in (b"token=abc", b"\xff", b"[" * 100_000):
        assert mask_message(raw) == (
            b'{"content":"[omitted: the message could not be read for redaction]"}',
            True,
        )
    deep: Any = "token=abc"
    for _ in range(150):
        deep = [deep]
    assert "abc" not in json.dumps(mask_message_dict({"content": deep}))


@given(st.recursive(st.text() | st.integers() | st.none(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_a_masked_message_is_json_and_masking_it_again_changes_nothing(content: Any) -> None:
    raw, _ = mask_message(json.dumps({"content": content, "token": "x"}).encode())
    again, _ = mask_message(raw)
    assert json.loads(again) == json.loads(raw)
    assert json.loads(raw)["token"] == "***"


@given(st.text(st.sampled_from("tokensecrp:= \"'\\{}-_/@İab\n"), max_size=60))
def test_text_around_a_secret_never_prevents_its_masking(noise: str) -> None:
    needle = f"ghp_{LONG}"
    assert needle not in mask_secrets(f"{noise} {needle} {noise}")[0]


def test_lower_casing_changes_the_length_of_one_character_only() -> None:
    """The search relies on it: of all characters only U+0130 becomes longer."""
    assert [chr(c) for c in range(sys.maxunicode + 1) if len(chr(c).lower()) != 1] == ["\u0130"]


PIECE = 64 * 1024


@check_each("text", [text for text, _ in MASKED if "BEGIN" not in text or "END" in text])
def test_a_secret_across_a_piece_boundary_of_a_long_text_is_masked(text: str) -> None:
    small = mask_secrets(f"word\n{text}\nword")[0].removeprefix("word\n").removesuffix("\nword")
    for back in (0, 1, len(text) // 2, len(text) - 1, len(text)):
        before = ("word\n" * PIECE)[-(PIECE - back) :]
        after = "\n" + "word\n" * (PIECE // 4)
        assert mask_secrets(before + text + after) == (before + small + after, True)


@check_each("start", ["token=", 'password: "', "sk-", "bearer ", "authorization: ", "cookie: a="])
@check_each("size", [PIECE // 2, PIECE, 3 * PIECE])
def test_a_secret_longer_than_one_piece_is_masked_whole(start: str, size: int) -> None:
    masked, found = mask_secrets(f"before {start}{'Ab1' * (size // 3)}\nbehind")
    assert found
    assert masked.startswith(f"before {start}"[:-3]) and masked.endswith("\nbehind")
    assert len(masked) < 60


HELD = [
    "a ",
    'token="' + "x" * 100,
    "a",
    "token=",
    "-----BEGIN PRIVATE KEY-----\n",
    "\u0130",
    "eyJaaaaaaaaaaa.",
    "cookie: a",
]


@pytest.mark.parametrize("text", spread(HELD, 2))
def test_masking_never_holds_the_interpreter_lock_for_long(text: str) -> None:
    """Measures the processor time of each call into C, during which no other thread can run."""
    long, longest, began = text + text[-1] * 8 * MEGABYTE, 0.0, 0.0

    def note(_frame: Any, event: str, _what: Any) -> None:
        nonlocal longest, began
        if event == "c_call":
            began = time.thread_time()
        elif event == "c_return":
            longest = max(longest, time.thread_time() - began)

    sys.setprofile(note)
    try:
        mask_secrets(long)
    finally:
        sys.setprofile(None)
    # Masking one piece takes two milliseconds; the whole text at once would take 250.
    assert longest < 0.1


# --- hostile text ----------------------------------------------------------------------------------------------

MEGABYTE = 1_000_000
HOSTILE = [
    "a", "sk-", "sk- ", "token", "token=", "token  ", "key", "apikey", "api_key: ", "secret:\\\"", "password='\\",
    "-", "--a", "--a-", "--token ", "://", "://a:", "eyJ", "eyJaaaaaaaaaa.", "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN ", "bearer ", "authorization:", "authorization: bearer ", "cookie:a", "cookie: =", "123456:AA", "1",
    'token="', "token=\\", "\\", "\0", "\u0130", "ghp_", "xoxb-", "0oRDoQEn", "token=\n", " ", '"', "AKIA", "npm_",
]  # fmt: skip


# A search of quadratic time would take minutes for a megabyte, and many seconds for a fifth of one.
ENOUGH = amount(MEGABYTE, MEGABYTE // 10)
MOST_S = 5 * ENOUGH / MEGABYTE


@check_each("unit", spread(HOSTILE, 8))
def test_a_megabyte_of_hostile_text_is_searched_within_seconds(unit: str) -> None:
    text = (unit * (ENOUGH // len(unit) + 1))[:ENOUGH]
    started = time.thread_time()
    mask_secrets(text)
    assert time.thread_time() - started < MOST_S


STARTS = ["token=", "password: '", "authorization: ", "cookie: a=", "--token ", "sk-", "eyJ"]
FILLS = ["a", " ", "\\", ".", "-", "=", "A1"]


# By default each start with two fills, and each fill with two starts.
@check_each(("start", "fill"), spread(list(product(STARTS, FILLS)), 10))
def test_a_megabyte_after_the_start_of_a_secret_is_searched_within_seconds(start: str, fill: str) -> None:
    started = time.thread_time()
    mask_secrets(start + fill * (ENOUGH // len(fill)))
    assert time.thread_time() - started < MOST_S
