from __future__ import annotations

import posixpath
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.config.link import ExportRule, PeerConfig
from sessiond.link.rules import is_exported

KEY = "sdl1-" + "A" * 91
AGENTS = {"ops", "dev"}
OPS = {"key": "agent:ops:main", "source": "sessiond", "label": "pub-notes", "cwd": "/srv/web"}


def peer(*rules: ExportRule) -> PeerConfig:
    return PeerConfig(name="mars", key=KEY, export=rules)


@check_each(
    ("rule", "is_wanted"),
    [
        (ExportRule(), False),
        (ExportRule(agents=("ops",)), True),
        (ExportRule(agents=("op",)), False),
        (ExportRule(agents=("dev", "o*")), True),
        (ExportRule(agents=("*",)), True),
        (ExportRule(agents=("OPS",)), True),
        (ExportRule(agents=("agent:ops",)), False),
        (ExportRule(labels=("pub-*",)), True),
        (ExportRule(labels=("pub",)), False),
        (ExportRule(cwd=("/srv/*",)), True),
        (ExportRule(cwd=("/srv/web",)), True),
        (ExportRule(cwd=("/srv",)), False),
        (ExportRule(cwd=("/SRV/*",)), False),
        (ExportRule(agents=("ops",), labels=("pub-*",), cwd=("/srv/*",)), True),
        (ExportRule(agents=("dev",), labels=("pub-*",), cwd=("/srv/*",)), False),
        (ExportRule(agents=("ops",), labels=("priv-*",), cwd=("/srv/*",)), False),
        (ExportRule(agents=("ops",), labels=("pub-*",), cwd=("/home/*",)), False),
        (ExportRule(agents=("[o]ps",)), False),
        (ExportRule(agents=("op?",)), False),
    ],
)
def test_within_a_rule_all_given_fields_have_to_match(rule: ExportRule, is_wanted: bool) -> None:
    assert is_exported(OPS, peer(rule), frozenset(), AGENTS) is is_wanted


def test_any_of_several_rules_is_enough_and_without_one_nothing_leaves() -> None:
    rules = (ExportRule(agents=("dev",)), ExportRule(labels=("pub-*",)))
    assert is_exported(OPS, peer(*rules), frozenset(), AGENTS)
    assert not is_exported({**OPS, "label": None}, peer(*rules), frozenset(), AGENTS)
    assert not is_exported(OPS, peer(), frozenset(), AGENTS)


@check_each(
    ("marks", "is_wanted"),
    [(set(), False), ({"mars"}, True), ({"*"}, True), ({"moon"}, False), ({"moon", "mars"}, True), ({"mar*"}, False)],
)
def test_what_the_owner_marked_leaves_without_a_rule(marks: set[str], is_wanted: bool) -> None:
    assert is_exported(OPS, peer(), marks, AGENTS) is is_wanted


@check_each(
    "changed",
    [
        {"source": "claude"},
        {"source": "claude", "key": "claude:1a2b"},
        {"key": "moon/agent:ops:main"},
        {"key": "moon/agent:ops:main", "machine": "moon", "readOnly": True},
        {"machine": "moon"},
        {"key": None},
        {"source": None},
    ],
)
def test_only_sessions_of_this_machine_leave(changed: dict[str, Any]) -> None:
    """A replica is its machine's to export, and nobody may get by a third machine what his own rules refuse."""
    everything = peer(ExportRule(agents=("*",)))
    assert is_exported(OPS, everything, {"*"}, AGENTS)
    assert not is_exported({**OPS, **changed}, everything, {"*"}, AGENTS)


@check_each("cwd", ["/srv/../etc", "/srv/web/../../etc", "/srv/./../root", "srv/web", "", None, 7])
def test_a_folder_that_leads_out_of_the_pattern_is_not_in_it(cwd: object) -> None:
    assert not is_exported({**OPS, "cwd": cwd}, peer(ExportRule(cwd=("/srv/*",))), frozenset(), AGENTS)


@check_each("cwd", ["/srv/web/", "/srv//web", "/srv/web/../shop", "/srv/./web"])
def test_a_folder_may_be_spelled_in_several_ways(cwd: str) -> None:
    assert is_exported({**OPS, "cwd": cwd}, peer(ExportRule(cwd=("/srv/*",))), frozenset(), AGENTS)


VALUE = st.one_of(st.none(), st.text(max_size=12), st.integers(), st.sampled_from(["sessiond", "agent:ops:main"]))


@given(st.dictionaries(st.sampled_from(["key", "source", "label", "cwd", "machine"]), VALUE))
def test_no_row_raises_an_error_or_leaves_without_a_rule(row: dict[str, Any]) -> None:
    assert not is_exported(row, peer(), frozenset(), AGENTS)
    rules = (ExportRule(agents=("*",)), ExportRule(labels=("*",)), ExportRule(cwd=("*",)))
    is_exported(row, peer(*rules), {"mars"}, AGENTS)


@given(st.text(alphabet="ab*/", min_size=1, max_size=8), st.text(alphabet="ab/", max_size=12))
def test_a_star_stands_for_any_text(pattern: str, cwd: str) -> None:
    form = ".*".join(map(re.escape, pattern.split("*")))
    is_wanted = re.fullmatch(form, posixpath.normpath(cwd)) is not None
    assert is_exported({**OPS, "cwd": cwd}, peer(ExportRule(cwd=(pattern,))), frozenset(), AGENTS) is is_wanted


def test_a_pattern_of_many_stars_takes_no_longer() -> None:
    assert not is_exported({**OPS, "cwd": "a" * 4000}, peer(ExportRule(cwd=("*a" * 60 + "b",))), frozenset(), AGENTS)


def test_what_another_machine_has_answered_leaves_by_a_mark_alone() -> None:
    """Also when the machine was taken out of the configuration: only an agent's sessions leave by a rule."""
    everything = peer(ExportRule(agents=("*", "moon")))
    for key in ("agent:moon:moon/agent:ops:main", "agent:moon:subagent:0b0f"):
        assert not is_exported({**OPS, "key": key}, everything, frozenset(), AGENTS)
        assert is_exported({**OPS, "key": key}, everything, {"mars"}, AGENTS)
        assert is_exported({**OPS, "key": key}, everything, frozenset(), {"moon"})
