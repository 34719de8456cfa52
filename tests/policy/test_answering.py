"""Who may answer whose questions: random trees against a reference in five lines."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.errors import Forbidden
from sessiond.model.caller import OWNER, SCOPES, Caller
from sessiond.policy.answering import check_answer, is_kin, name_of
from sessiond.policy.visibility import VisibilityRules

RULES = VisibilityRules()
AGENTS = ("main", "ops", "third")
MAIN, CHILD = "agent:main:main", "agent:ops:subagent:c"


def token(session_key: str | None = None, **claims: object) -> Caller:
    fields = {"kind": "token", "scopes": frozenset({"answer"}), "session_key": session_key, "token_id": "t"} | claims
    return Caller(**fields)


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[str], dict[str, str]]:
    """Sessions of several agents, also programs', and who spawned whom; now and then in a circle, as a file may say."""
    count = draw(st.integers(1, 7))
    heads = [draw(st.sampled_from([*(f"agent:{name}" for name in AGENTS), "claude"])) for _ in range(count)]
    keys = [f"{head}:s{place}" for place, head in enumerate(heads)]
    spawners = {key: draw(st.sampled_from(keys)) for key in keys if draw(st.booleans())}
    return keys, spawners


def chain(key: str, spawners: dict[str, str]) -> set[str]:
    """The session, and all that it descends from."""
    found: set[str] = set()
    while key not in found:
        found.add(key)
        key = spawners.get(key, key)
    return found


@given(trees(), st.data())
@example((["agent:main:s0", "agent:ops:s1"], {"agent:main:s0": "agent:ops:s1", "agent:ops:s1": "agent:main:s0"}), None)
def test_kin_are_oneself_ancestors_descendants_and_sessions_of_the_same_agent(
    tree: tuple[list[str], dict[str, str]], data: st.DataObject | None
) -> None:
    keys, spawners = tree
    for own in (key for key in keys if key.startswith("agent:")):
        claims = data.draw(st.fixed_dictionaries({"sandboxed": st.booleans(), "run_id": st.none()})) if data else {}
        admin = frozenset(SCOPES) if data and data.draw(st.booleans()) else frozenset({"answer"})
        for target in keys:
            agents = {key.split(":")[1] for key in (own, target) if key.startswith("agent:")}
            same_agent = target.startswith("agent:") and len(agents) == 1
            expected = same_agent or own in chain(target, spawners) or target in chain(own, spawners)
            caller = token(own, scopes=admin, **claims)
            assert is_kin(caller, target, RULES, spawners.get) == expected, (own, target, spawners)
            assert not is_kin(OWNER, target, RULES, spawners.get)
            assert not is_kin(token(scopes=admin | {"admin"}), target, RULES, spawners.get)
            assert not is_kin(token(scopes=frozenset({"answer"}), is_page=True), target, RULES, spawners.get)


@check_each(
    ("caller", "target", "kin"),
    [
        (token(agent_id="main"), "agent:main:other", True),
        (token(agent_id="main"), CHILD, True),
        (token(agent_id="ops"), MAIN, False),
        (token(), MAIN, False),
        (token(scopes=frozenset({"admin", "answer"}), sandboxed=True), MAIN, False),
        (token("agent:main:mcp:claude"), "claude:abc", True),
        (token("agent:main:mcp:claude-code"), "claude:abc", True),
        (token("agent:main:mcp:claudette"), "claude:abc", False),
        (token("agent:main:mcp:codex"), "claude:abc", False),
        (token(MAIN), "claude:abc", False),
    ],
)
def test_tokens_of_an_agent_inboxes_of_programs_and_strangers(caller: Caller, target: str, *, kin: bool) -> None:
    assert is_kin(caller, target, RULES, {CHILD: MAIN}.get) is kin


def test_the_refusal_names_the_session_and_the_record_says_who_answered() -> None:
    with pytest.raises(Forbidden) as refused:
        check_answer(token(MAIN), CHILD, RULES, {CHILD: MAIN}.get)
    assert refused.value.code == "question_kin"
    assert CHILD in refused.value.message
    check_answer(OWNER, CHILD, RULES, {CHILD: MAIN}.get)
    stand_in = token(scopes=frozenset({"admin", "answer"}))
    names = [name_of(one, RULES) for one in (OWNER, stand_in, token(MAIN), token(agent_id="ops"), token())]
    assert names == ["owner", "owner", MAIN, "agent:ops:main", "token t"]


def test_admin_does_not_imply_the_scope() -> None:
    holders = [token(scopes=frozenset({scope})) for scope in SCOPES]
    assert [scope for scope, one in zip(SCOPES, holders, strict=True) if one.has("answer")] == ["answer"]
    assert OWNER.has("answer")
    assert all(token(scopes=frozenset({"admin"})).has(scope) for scope in SCOPES if scope != "answer")
