"""Who sees which sessions: the documented rules as tables, and random trees against a short reference."""

from __future__ import annotations

import itertools
import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.config.settings import Config, parse
from sessiond.errors import Forbidden
from sessiond.model.caller import NOBODY, OWNER, Caller
from sessiond.policy.visibility import (
    VisibilityRules,
    check_mint,
    effective,
    in_tree,
    matches_any,
    matches_wildcard,
    may_see,
    rules_from,
    sight,
)

MAIN = "agent:main:main"
CHILD = "agent:main:subagent:c1"
GRANDCHILD = "agent:main:subagent:c2"
ABROAD = "agent:ops:subagent:c3"
BELOW_ABROAD = "agent:ops:subagent:c4"
SIBLING = "agent:main:telegram:group:7"
OTHER = "agent:ops:main"
SPAWNERS = {CHILD: MAIN, GRANDCHILD: CHILD, ABROAD: MAIN, BELOW_ABROAD: ABROAD}
EVERY = (MAIN, CHILD, GRANDCHILD, ABROAD, BELOW_ABROAD, SIBLING, OTHER)
LEVELS = ("self", "tree", "agent", "all")


def token(session_key: str | None = MAIN, **claims: object) -> Caller:
    fields = {"kind": "token", "scopes": frozenset({"read"}), "session_key": session_key} | claims
    return Caller(**fields)


def visible_keys(caller: Caller, rules: VisibilityRules, action: str = "read") -> set[str]:
    return {key for key in EVERY if may_see(caller, key, rules, SPAWNERS.get, action)}


def test_each_level_sees_exactly_its_sessions() -> None:
    table = {
        "self": {MAIN},
        "tree": {MAIN, CHILD, GRANDCHILD, ABROAD, BELOW_ABROAD},
        "agent": {MAIN, CHILD, GRANDCHILD, ABROAD, BELOW_ABROAD, SIBLING},
        "all": {MAIN, CHILD, GRANDCHILD, ABROAD, BELOW_ABROAD, SIBLING},
    }
    assert {level: visible_keys(token(), VisibilityRules(visibility=level)) for level in LEVELS} == table


def test_seeing_another_agents_sessions_needs_level_all_and_both_agents_allowed() -> None:
    def sees_other(*allow: str, level: str = "all", enabled: bool = True) -> bool:
        rules = VisibilityRules(visibility=level, agent_to_agent=enabled, allow=allow)
        return may_see(token(), OTHER, rules, SPAWNERS.get)

    assert sees_other("main", "ops")
    assert sees_other("*")
    assert sees_other("MA*", " op? ", "o*s")
    assert not sees_other()
    assert not sees_other(" ")
    assert not sees_other("main")
    assert not sees_other("ops")
    assert not sees_other("*", enabled=False)
    assert not sees_other("*", level="agent")
    assert not sees_other("*", level="tree")


def test_a_child_sees_itself_and_not_its_parent() -> None:
    assert visible_keys(token(CHILD), VisibilityRules()) == {CHILD, GRANDCHILD}


def test_a_sandbox_limits_the_level_to_tree_and_never_widens_it() -> None:
    boxed = token(sandboxed=True)
    clamped = {level: effective(boxed, VisibilityRules(visibility=level)) for level in LEVELS}
    assert clamped == {"self": "self", "tree": "tree", "agent": "tree", "all": "tree"}
    free = VisibilityRules(visibility="all", session_tools_visibility="all")
    assert effective(boxed, free) == "all"
    assert effective(token(), VisibilityRules(visibility="all")) == "all"


def test_sending_has_its_own_visibility_level() -> None:
    rules = VisibilityRules(visibility="agent", send_visibility="self")
    assert visible_keys(token(), rules, "read") > visible_keys(token(), rules, "send") == {MAIN}
    wider = VisibilityRules(visibility="self", send_visibility="all")
    assert effective(token(sandboxed=True), wider, "send") == "tree"
    assert effective(token(), VisibilityRules(visibility="agent"), "send") == "agent"


def test_the_owner_and_an_admin_token_without_a_session_see_all() -> None:
    rules = VisibilityRules(visibility="self")
    stand_in = token(None, scopes=frozenset({"admin"}))
    assert visible_keys(OWNER, rules) == visible_keys(stand_in, rules) == set(EVERY)
    assert effective(OWNER, rules) == effective(stand_in, rules) == "all"


def test_an_admin_token_of_a_session_or_a_sandbox_sees_no_more_than_others() -> None:
    rules = VisibilityRules(visibility="self")
    admin = frozenset({"admin"})
    assert visible_keys(token(MAIN, scopes=admin), rules) == {MAIN}
    assert visible_keys(token(None, agent_id="main", scopes=admin), rules) == {MAIN}
    assert visible_keys(token(None, scopes=admin, sandboxed=True), rules) == set()


def test_a_token_with_only_an_agent_sees_as_that_agents_main_session() -> None:
    adapter = token(None, agent_id="ops")
    assert visible_keys(adapter, VisibilityRules(visibility="tree")) == {OTHER}
    assert visible_keys(adapter, VisibilityRules(visibility="agent")) == {OTHER, ABROAD, BELOW_ABROAD}
    assert sight(adapter, VisibilityRules(main_key="home")).own_key == "agent:ops:home"


def test_a_token_without_session_or_agent_sees_nothing_unless_all_agents_are_allowed() -> None:
    bare = token(None)
    for level in LEVELS:
        assert visible_keys(bare, VisibilityRules(visibility=level)) == set()
    named = VisibilityRules(visibility="all", agent_to_agent=True, allow=("main", "ops"))
    everyone = VisibilityRules(visibility="all", agent_to_agent=True, allow=("*",))
    assert visible_keys(bare, named) == set()
    assert visible_keys(bare, everyone) == set(EVERY)


def test_an_unauthenticated_caller_sees_nothing() -> None:
    rules = VisibilityRules(visibility="all", agent_to_agent=True, allow=("*",))
    assert visible_keys(NOBODY, rules) == set()


def test_a_tokens_session_key_takes_precedence_over_its_agent() -> None:
    assert visible_keys(token(CHILD, agent_id="ops"), VisibilityRules(visibility="agent")) == {
        MAIN, CHILD, GRANDCHILD, SIBLING,
    }  # fmt: skip


@check_each("length", [1, 2, 3])
def test_the_tree_search_ends_on_a_cycle_of_spawners(length: int) -> None:
    circle = {f"agent:a:{n}": f"agent:a:{(n + 1) % length}" for n in range(length)}
    left = 3 * length

    def spawner_of(key: str) -> str | None:
        nonlocal left
        left -= 1
        assert left >= 0, "the search does not end"
        return circle.get(key)

    assert not in_tree("agent:a:root", "agent:a:0", spawner_of)
    assert in_tree(f"agent:a:{length - 1}", "agent:a:0", spawner_of)


def test_a_chain_of_ten_thousand_is_one_tree() -> None:
    chain = {f"agent:a:{n + 1}": f"agent:a:{n}" for n in range(10_000)}
    assert in_tree("agent:a:0", "agent:a:10000", chain.get)
    assert not in_tree("agent:a:10000", "agent:a:0", chain.get)


def test_a_token_cannot_mint_one_with_wider_rights() -> None:
    admin = token(MAIN, scopes=frozenset({"admin"}))
    boxed = token(MAIN, scopes=frozenset({"admin"}), sandboxed=True)

    def can_mint(
        caller: Caller,
        key: str | None,
        agent: str | None = None,
        sandboxed: bool = False,
        rules: VisibilityRules = VisibilityRules(),  # noqa: B008 - frozen
    ) -> bool:
        try:
            check_mint(
                caller, session_key=key, agent_id=agent, sandboxed=sandboxed, rules=rules, spawner_of=SPAWNERS.get
            )
        except Forbidden:
            return False
        return True

    assert can_mint(OWNER, None)
    assert can_mint(OWNER, OTHER)
    assert can_mint(admin, MAIN)
    assert can_mint(admin, BELOW_ABROAD)
    assert can_mint(admin, None, "main")
    assert not can_mint(admin, None)
    assert not can_mint(admin, OTHER)
    assert not can_mint(admin, None, "ops")
    # A caller who may read a session but not send to it could otherwise send as that session.
    looks = VisibilityRules(visibility="all", send_visibility="self", agent_to_agent=True, allow=("*",))
    sends = VisibilityRules(visibility="self", send_visibility="all", agent_to_agent=True, allow=("*",))
    both = VisibilityRules(visibility="all", agent_to_agent=True, allow=("*",))
    assert [can_mint(admin, SIBLING, rules=one) for one in (looks, sends, both)] == [False, False, True]
    assert can_mint(boxed, CHILD, sandboxed=True)
    assert not can_mint(boxed, CHILD)


# --- the model: random trees against a reference ---------------------------------------------------------------

AGENTS = ("a", "b", "c")
KEYS = tuple(f"agent:{agent}:{n}" for agent in AGENTS for n in ("main", "1", "2", "3"))


def reference(caller: Caller, target: str, rules: VisibilityRules, spawners: dict[str, str], action: str) -> bool:
    if caller.kind == "owner":
        return True
    level = LEVELS.index((rules.send_visibility if action == "send" else None) or rules.visibility)
    if caller.sandboxed and rules.session_tools_visibility == "spawned":
        level = min(level, 1)
    above = {target}
    for _ in KEYS:
        above |= {spawners[key] for key in above if key in spawners}
    mine, theirs = str(caller.session_key).split(":")[1], target.split(":")[1]
    both = rules.agent_to_agent and all(any(p in ("*", agent) for p in rules.allow) for agent in (mine, theirs))
    tree = caller.session_key in above
    return (target == caller.session_key, tree, tree or mine == theirs, tree or mine == theirs or both)[level]


@given(
    spawners=st.dictionaries(st.sampled_from(KEYS), st.sampled_from(KEYS)),
    caller=st.builds(
        Caller,
        kind=st.sampled_from(["owner", "token"]),
        session_key=st.sampled_from(KEYS),
        sandboxed=st.booleans(),
        scopes=st.sampled_from([frozenset({"read"}), frozenset({"admin"})]),
    ),
    rules=st.builds(
        VisibilityRules,
        visibility=st.sampled_from(LEVELS),
        send_visibility=st.sampled_from([None, *LEVELS]),
        agent_to_agent=st.booleans(),
        allow=st.lists(st.sampled_from(["*", *AGENTS]), max_size=3).map(tuple),
        session_tools_visibility=st.sampled_from(["spawned", "all"]),
    ),
    action=st.sampled_from(["read", "send"]),
)
def test_visibility_in_random_trees_agrees_with_the_reference(
    spawners: dict[str, str], caller: Caller, rules: VisibilityRules, action: str
) -> None:
    for target in KEYS:
        expected = reference(caller, target, rules, spawners, action)
        assert may_see(caller, target, rules, spawners.get, action) == expected


@given(
    spawners=st.dictionaries(st.sampled_from(KEYS), st.sampled_from(KEYS)),
    key=st.sampled_from(KEYS),
    sandboxed=st.booleans(),
    allow=st.lists(st.sampled_from(["*", *AGENTS]), max_size=3).map(tuple),
)
def test_a_wider_level_never_sees_less(
    spawners: dict[str, str], key: str, sandboxed: bool, allow: tuple[str, ...]
) -> None:
    caller = token(key, sandboxed=sandboxed)
    views = [
        {
            target
            for target in KEYS
            if may_see(
                caller,
                target,
                VisibilityRules(visibility=level, agent_to_agent=True, allow=allow),
                spawners.get,
            )
        }
        for level in LEVELS
    ]
    assert all(narrow <= wide for narrow, wide in itertools.pairwise(views))


# --- wildcards -------------------------------------------------------------------------------------------------


@given(pattern=st.text("ab*A.?[", max_size=8), text=st.text("abAB.?[", max_size=10))
@example(pattern="a*a", text="a")
@example(pattern="**", text="")
@example(pattern="ab*ba", text="aba")
def test_wildcards_agree_with_a_regular_expression(pattern: str, text: str) -> None:
    expected = re.fullmatch(
        ".*".join(re.escape(piece) for piece in pattern.split("*")), text, re.IGNORECASE | re.DOTALL
    )
    assert matches_wildcard(pattern, text) == (expected is not None)


def test_hostile_wildcards_are_matched_in_linear_time() -> None:
    pattern, text = "*a" * 20_000 + "*b", "a" * 40_000
    started = time.thread_time()
    assert not matches_wildcard(pattern, text)
    assert time.thread_time() - started < 0.5


def test_blank_patterns_match_nothing() -> None:
    assert not matches_any(("", "  "), "")
    assert not matches_any((), "main")
    assert matches_any((" Main ",), "main")


def test_the_refusal_of_a_mint_gives_the_reason() -> None:
    with pytest.raises(Forbidden, match="minted only for a session that you may see yourself") as caught:
        check_mint(
            token(MAIN, scopes=frozenset({"admin"})),
            session_key=OTHER,
            agent_id=None,
            sandboxed=False,
            rules=VisibilityRules(),
            spawner_of=SPAWNERS.get,
        )
    assert caught.value.code == "token_wider"


def test_the_rules_are_read_from_the_configuration() -> None:
    assert rules_from(Config()) == VisibilityRules()
    text = """
        [session]
        mainKey = "home"
        [tools.sessions]
        visibility = "agent"
        sendVisibility = "self"
        [tools.agentToAgent]
        enabled = true
        allow = ["ops-*"]
        [agents.defaults.sandbox]
        sessionToolsVisibility = "all"
    """
    assert rules_from(parse(text)) == VisibilityRules(
        visibility="agent",
        send_visibility="self",
        agent_to_agent=True,
        allow=("ops-*",),
        session_tools_visibility="all",
        main_key="home",
    )


@check_each(
    ("level", "sandboxed", "sees"),
    [
        ("self", False, False),
        ("tree", False, False),
        ("agent", False, False),
        ("all", False, True),
        ("all", True, False),
    ],
)
def test_other_programs_sessions_are_seen_with_level_all_and_outside_the_sandbox(
    level: str, sandboxed: bool, sees: bool
) -> None:
    rules = VisibilityRules(visibility=level, agent_to_agent=True, allow=("*",), session_tools_visibility="all")
    caller = token(sandboxed=sandboxed)
    assert may_see(caller, "claude:abc", rules, SPAWNERS.get) is sees
    assert may_see(OWNER, "claude:abc", rules, SPAWNERS.get)
    assert not may_see(NOBODY, "claude:abc", rules, SPAWNERS.get)


def test_agent_to_agent_rules_do_not_open_other_programs_sessions() -> None:
    rules = VisibilityRules(visibility="agent", agent_to_agent=True, allow=("*",))
    assert not may_see(token(None, agent_id=None), "claude:abc", rules, SPAWNERS.get)


def test_a_hidden_session_of_another_program_takes_as_long_to_refuse_as_a_missing_key() -> None:
    def steps(key: str) -> int:
        asked: list[str] = []
        assert not may_see(token(), key, VisibilityRules(), asked.append)
        return len(asked)

    assert steps("claude:abc") == steps("agent::")


MARS = "agent:mars:main"
SPAWNED_BY_MARS = {"agent:ops:subagent:m1": MARS, "agent:ops:subagent:m2": "agent:ops:subagent:m1"}
OF_MARS = {*SPAWNED_BY_MARS}
REACHED = (*EVERY, MARS, *SPAWNED_BY_MARS, "agent:mars:mars/main", "agent:venus:venus/main", "claude:1a2b3c4d")
RULE = VisibilityRules(
    visibility="all",
    agent_to_agent=True,
    allow=("*",),
    machines={"mars": ("agent:ops:m*", "agent:venus:*", "agent:mars:*"), "venus": ()},
)


def reached_by_machine(action: str, rules: VisibilityRules = RULE, **claims: object) -> set[str]:
    caller = token(None, agent_id="mars", **claims)
    return {key for key in REACHED if may_see(caller, key, rules, SPAWNED_BY_MARS.get, action)}


def test_a_machine_reads_its_tree_and_writes_to_what_it_spawned_and_what_its_rule_names() -> None:
    assert reached_by_machine("read") == {MARS, *OF_MARS}
    assert reached_by_machine("send") == OF_MARS
    # Never to a session of a machine, whatever the patterns say: it would go on, or back.
    assert reached_by_machine("address") == {*OF_MARS, OTHER}
    assert {effective(token(None, agent_id="mars"), RULE, action) for action in ("read", "send", "address")} == {"tree"}


@pytest.mark.parametrize("level", LEVELS)
def test_no_visibility_widens_or_narrows_what_a_machine_reaches(level: str) -> None:
    rules = VisibilityRules(visibility=level, send_visibility=level, machines=RULE.machines)
    assert reached_by_machine("read", rules) == {MARS, *OF_MARS}
    assert reached_by_machine("address", rules) == {*OF_MARS, OTHER}


def test_a_token_of_a_machine_without_a_rule_reaches_its_tree_and_what_it_spawned() -> None:
    rules = VisibilityRules(visibility="all", agent_to_agent=True, allow=("*",))
    assert reached_by_machine("read", rules, is_machine=True) == {MARS, *OF_MARS}
    assert reached_by_machine("address", rules, is_machine=True) == OF_MARS
    assert OTHER in reached_by_machine("address", rules)  # a token of an agent with that name


def test_a_machine_has_neither_admin_nor_answer_whatever_its_token_says() -> None:
    machine = token(None, agent_id="mars", is_machine=True, scopes=frozenset({"admin", "answer", "send"}))
    held = {scope for scope in ("list", "read", "send", "spawn", "answer", "admin") if machine.has(scope)}
    assert held == {"list", "read", "send", "spawn"}
    assert not sight(token(None, is_machine=True, scopes=frozenset({"admin"})), RULE).reaches(OTHER, SPAWNERS.get)


def test_rules_name_the_machines_of_the_configuration() -> None:
    peer = '[[link.peers]]\nname = "mars"\nkey = "AAAABBBBCCCCDDDDEEEE"\nsend = ["agent:ops:*"]\n'
    config = parse(f'[link]\nname = "lap"\nserver = "nats://x"\n{peer}')
    assert rules_from(config).machines == {"mars": ("agent:ops:*",)}
