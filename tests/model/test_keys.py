"""The session keys that callers may write, what they resolve to, and what a key tells. Source: protocol.md, "Keys"."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.errors import InvalidParams
from sessiond.model import keys
from sessiond.model.keys import KeyRules

RULES = KeyRules()
UUID = "0e821bfa-101c-4841-b9ad-71d2ff5627e8"


@check_each(
    ("text", "key"),
    [
        ("main", "agent:main:main"),
        ("  Main\n", "agent:main:main"),
        ("agent:main:main", "agent:main:main"),
        ("AGENT:Ops:Main", "agent:ops:main"),
        ("agent:ops:whatsapp:group:120@g.us", "agent:ops:whatsapp:group:120@g.us"),
        ("agent:ops:discord:channel:42", "agent:ops:discord:channel:42"),
        ("discord:group:42", "agent:main:discord:group:42"),
        ("slack:channel:general", "agent:main:slack:channel:general"),
        ("cron:nightly", "agent:main:cron:nightly"),
        (f"hook:{UUID}", f"agent:main:hook:{UUID}"),
        ("node-phone", "agent:main:node-phone"),
        (f"agent:main:subagent:{UUID}", f"agent:main:subagent:{UUID}"),
        (UUID, None),
        ("some label", None),
        ("unknown", None),
        ("global", None),
        ("current", None),
        ("cron:", None),
    ],
)
def test_a_callers_text_resolves_to_a_canonical_key_or_needs_a_lookup(text, key):
    assert keys.canonical_key(text, RULES) == key


def test_main_means_the_main_session_of_the_callers_agent():
    assert keys.canonical_key("main", RULES, agent_id="ops") == "agent:ops:main"


def test_keys_without_an_agent_belong_to_the_default_agent_for_every_caller():
    rules = KeyRules(default_agent="home")
    assert keys.canonical_key("cron:nightly", rules, agent_id="ops") == "agent:home:cron:nightly"


def test_main_means_the_configured_main_key():
    rules = KeyRules(main_key="desk")
    assert [keys.canonical_key(text, rules) for text in ("main", "desk", "agent:main:main", "agent:main:desk")] == [
        "agent:main:desk"
    ] * 4


def test_global_means_main_where_the_scope_is_global():
    rules = KeyRules(scope="global")
    assert keys.canonical_key("global", rules, agent_id="ops") == "agent:ops:main"
    assert keys.canonical_key("agent:ops:global", rules) == "agent:ops:main"


@check_each(
    "text",
    [
        "",
        "   ",
        "agent:",
        "agent:main",
        "agent:main:",
        "agent:main:::",
        "agent::main",
        "agent:-x:main",
        "agent:a b:main",
        f"agent:{'a' * 65}:main",
        "agent:main:a\0b",
        "agent:main:a\x7fb",
        "agent:main:a\u2028b",
        "agent:main:\ud800",
    ],
)
def test_a_malformed_key_is_refused_and_the_error_names_its_field(text):
    with pytest.raises(InvalidParams) as refused:
        keys.canonical_key(text, RULES, field="$.key")
    assert refused.value.message.startswith("$.key ")
    assert refused.value.data == {"field": "$.key"}


def test_a_key_of_512_bytes_is_accepted_and_one_of_513_is_refused():
    prefix = "agent:main:"
    longest = prefix + "é" * ((512 - len(prefix)) // 2) + "x" * ((512 - len(prefix)) % 2)
    assert len(longest.encode()) == 512
    assert keys.canonical_key(longest, RULES) == longest
    with pytest.raises(InvalidParams, match="513 bytes long, the limit is 512"):
        keys.canonical_key(longest + "x", RULES)


def test_an_agent_id_has_at_most_64_characters():
    assert keys.canonical_key(f"agent:{'a' * 64}:main", RULES) == f"agent:{'a' * 64}:main"


@check_each(
    ("key", "chat_type", "kind"),
    [
        ("agent:main:main", None, "main"),
        ("agent:ops:main", None, "main"),
        ("agent:main:cron:x", None, "cron"),
        ("agent:main:hook:x", None, "hook"),
        ("agent:main:node-x", None, "node"),
        ("agent:main:node:x", None, "node"),
        ("agent:main:telegram:group:1", None, "group"),
        ("agent:main:discord:channel:1", None, "group"),
        ("agent:main:whatsapp:120", "group", "group"),
        ("agent:main:whatsapp:120", "direct", "other"),
        ("agent:main:subagent:x", None, "other"),
        ("agent:main:import:x", None, "other"),
    ],
)
def test_the_kind_is_derived_from_what_follows_the_agent_in_the_key(key, chat_type, kind):
    assert keys.kind_of(key, RULES, chat_type) == kind


@check_each(
    ("key", "chat_type"),
    [
        ("agent:main:telegram:group:1", "group"),
        ("agent:main:discord:channel:1", "channel"),
        ("agent:main:telegram:direct:1", "direct"),
        ("agent:main:telegram:dm:1", "direct"),
        ("agent:main:main", None),
    ],
)
def test_the_chat_type_is_read_from_the_key_where_it_has_one(key, chat_type):
    assert keys.chat_type_of(key) == chat_type


def test_a_key_is_split_into_agent_rest_and_group():
    key = "agent:ops:telegram:group:-100:7"
    assert keys.agent_of(key) == "ops"
    assert keys.rest_of(key) == "telegram:group:-100:7"
    assert keys.group_part(key) == ("telegram", "group", "-100:7")
    assert not keys.is_subagent(key)
    assert keys.is_subagent("agent:ops:subagent:1")


def test_a_row_shows_the_main_session_of_the_callers_agent_as_main():
    assert keys.display_key("agent:ops:main", RULES, "ops") == "main"
    assert keys.display_key("agent:ops:main", RULES, "main") == "agent:ops:main"
    assert keys.display_key("agent:main:main", RULES, None) == "main"


def test_global_and_unknown_are_never_listed():
    shown = ("main", "unknown:x", "x:unknown", "the-global")
    assert [keys.is_listed(f"agent:main:{rest}") for rest in ("global", "unknown", *shown)] == [False] * 2 + [True] * 4
    assert keys.is_listed("claude:global")


@given(
    st.one_of(
        st.text(max_size=40), st.builds("agent:{}:{}".format, st.from_regex(keys.AGENT_ID), st.text(max_size=30))
    ),
    st.sampled_from([RULES, KeyRules(main_key="desk"), KeyRules(scope="global", default_agent="ops")]),
)
@example("agent:a:İ", RULES)
@example("agent:a:global", KeyRules(scope="global"))
def test_resolving_only_raises_invalid_params_and_its_result_resolves_to_itself(text, rules):
    try:
        key = keys.canonical_key(text, rules)
    except InvalidParams:
        return
    assume(key is not None)
    assert keys.canonical_key(key, rules) == key
    assert keys.AGENT_ID.fullmatch(keys.agent_of(key))
    assert key == f"agent:{keys.agent_of(key)}:{keys.rest_of(key)}"
    assert len(key.encode()) <= keys.MAX_KEY_BYTES + len("agent:") + 64 + len(":main")
    assert keys.kind_of(key, rules) in ("main", "group", "cron", "hook", "node", "other")


NATIVE = "0E821bfa-1111-4222-8333-0123456789ab"


@check_each("source", keys.SOURCES)
def test_the_key_of_another_programs_session_keeps_its_letters_and_belongs_to_no_agent(source: str) -> None:
    key = f"{source}:{NATIVE}"
    assert keys.canonical_key(f" {source.upper()}:{NATIVE} ", RULES) == key
    assert (keys.is_foreign(key), keys.source_of(key)) == (True, source)
    assert (keys.agent_of(key), keys.rest_of(key)) == ("", NATIVE)
    assert keys.kind_of(key, KeyRules(main_key=NATIVE)) == "other"
    assert (keys.is_listed(key), keys.is_subagent(key), keys.is_inbox(key)) == (True, False, False)


@check_each("text", ["claude:", "claude:../x", "claude:a b", "claude:.a", "other:abc", "claude:" + "a" * 129])
def test_what_is_no_native_id_is_no_key_of_another_program(text: str) -> None:
    assert keys.canonical_key(text, RULES) is None


def test_our_own_keys_are_not_foreign() -> None:
    assert not any(map(keys.is_foreign, ("agent:main:main", "agent:main:claude:abc", "agent::", "")))
    assert keys.source_of("agent:claude:main") is None
