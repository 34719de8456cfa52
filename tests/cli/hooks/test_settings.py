"""Our hooks in the text of a program's settings: what is added goes again, and no other byte changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.cli.hooks.json_text import UnknownForm
from sessiond.cli.hooks.settings import PROGRAMS, add_hooks, find_ours, is_ours, take_out

COMMAND = "/home/ada/bin/sessiond hook || true"
TIMEOUTS = PROGRAMS["claude"].timeouts
THEIRS = {"matcher": "Bash", "hooks": [{"type": "command", "command": "say hook"}]}

_leaf = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
_value = st.recursive(
    _leaf,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_hooks = st.dictionaries(st.sampled_from([*TIMEOUTS, "PreToolUse"]), st.lists(st.just(THEIRS) | _value, max_size=2))
_settings = st.builds(
    lambda others, hooks: {**others, **({"hooks": hooks} if hooks is not None else {})},
    st.dictionaries(st.text(max_size=5).filter(lambda key: key != "hooks"), _value, max_size=3),
    st.none() | _hooks,
)
_layout = st.sampled_from([None, 0, 2, 4, "\t"])


@given(_settings, _layout, st.booleans(), st.sampled_from(["", "\n", "\r\n \n"]))
@example({}, None, True, "")
@example({"hooks": {}}, 2, True, "\n")
@example({"hooks": {"Stop": []}}, 2, False, "\n")
def test_what_was_added_goes_again_byte_for_byte(settings: Any, layout: Any, is_ascii: bool, end: str) -> None:
    text = json.dumps(settings, indent=layout, ensure_ascii=is_ascii) + end
    added = add_hooks(text, COMMAND, TIMEOUTS)
    parsed = json.loads(added)
    for event, limit in TIMEOUTS.items():
        assert {"hooks": [{"type": "command", "command": COMMAND, "timeout": limit}]} in parsed["hooks"][event]
    assert add_hooks(added, COMMAND, TIMEOUTS) == added
    assert take_out(added, text, TIMEOUTS) == (text, True)
    # Also where nothing of the text before is known but what it means.
    changed = added.replace(COMMAND, "/opt/sessiond hook", 1)
    without, as_before = take_out(changed, text, TIMEOUTS)
    assert not as_before
    assert without is not None
    assert json.loads(without) == settings
    assert find_ours(without) == {}


@given(st.text(max_size=60) | st.recursive(_leaf, st.lists, max_leaves=5).map(json.dumps))
@example('{"hooks": 5}')
@example('{"hooks": {"Stop": {}}}')
@example('{"a": 1, "a": 2}')
@example('{"a": 1 // b\n}')
@example("[" * 100_000)
@example('{"hooks": {"Stop": [[], 1, {"hooks": 1}, {"hooks": [1, {"command": "\'"}]}]}}')
def test_any_text_is_added_to_or_refused(text: str) -> None:
    try:
        added = add_hooks(text, COMMAND, TIMEOUTS)
    except UnknownForm:
        return
    assert set(json.loads(added)["hooks"]) >= set(TIMEOUTS)


def test_only_ours_goes_where_the_file_was_changed_since() -> None:
    before = '{\n  "model": "opus",\n  "hooks": {\n    "Stop": []\n  }\n}\n'
    # As the program writes its settings anew, with a hook that somebody put beside ours.
    settings = json.loads(add_hooks(before, COMMAND, TIMEOUTS))
    settings["model"] = "sonnet"
    settings["hooks"]["SessionEnd"][0]["hooks"].insert(0, THEIRS["hooks"][0])
    settings["hooks"]["PreToolUse"] = [THEIRS]
    after, as_before = take_out(json.dumps(settings, indent=2), before, TIMEOUTS)
    wanted = {
        "model": "sonnet",
        "hooks": {"Stop": [], "SessionEnd": [{"hooks": THEIRS["hooks"]}], "PreToolUse": [THEIRS]},
    }
    assert (after, as_before) == (json.dumps(wanted, indent=2), False)


def test_ours_goes_from_behind_what_is_no_hook_at_all() -> None:
    ours = {"type": "command", "command": COMMAND}
    settings = {"hooks": {"Stop": [{"hooks": ["a word", ours]}]}}
    after, as_before = take_out(json.dumps(settings), None, TIMEOUTS)
    assert (json.loads(after or ""), as_before) == ({"hooks": {"Stop": [{"hooks": ["a word"]}]}}, False)


def test_a_moved_program_takes_the_place_of_the_old_one() -> None:
    before = '{\n  "hooks": {\n    "Stop": [{"hooks": []}]\n  }\n}'
    moved = add_hooks(add_hooks(before, COMMAND, TIMEOUTS), "/opt/sessiond hook", TIMEOUTS)
    assert COMMAND not in moved
    assert moved.count("/opt/sessiond hook") == len(TIMEOUTS)
    assert take_out(moved, before, TIMEOUTS)[0] == before


@check_each(
    ("command", "ours"),
    [
        ("sessiond hook", True),
        ("'/a b/sessiond' hook || true", True),
        ("/usr/bin/python3 -m sessiond hook --socket /run/x.sock || true", True),
        ("sessiond hooks", False),
        ("sessiond hook --else", False),
        ("hook", False),
        ("notsessiond hook", False),
        ("sessiond hook; rm -r /", False),
        ("'unclosed sessiond hook", False),
        ("", False),
        (None, False),
        (5, False),
    ],
)
def test_which_hooks_are_ours(command: object, ours: bool) -> None:
    assert is_ours({"type": "command", "command": command}) is ours


def test_settings_lie_where_the_program_looks_for_them() -> None:
    assert PROGRAMS["claude"].path({"CLAUDE_CONFIG_DIR": "/x/y"}) == "/x/y/settings.json"
    assert PROGRAMS["codex"].path({"CODEX_HOME": "/x"}) == "/x/hooks.json"
    assert PROGRAMS["codex"].path({}).endswith("/.codex/hooks.json")


def test_a_settings_file_with_the_same_key_twice_is_refused() -> None:
    with pytest.raises(UnknownForm, match='has "hooks" twice'):
        add_hooks('{"hooks": {}, "hooks": {}}', COMMAND, TIMEOUTS)


def test_settings_of_thousands_of_members_are_no_work_of_minutes() -> None:
    before = json.dumps({str(number): 0 for number in range(10_000)})
    assert take_out(add_hooks(before, COMMAND, TIMEOUTS), before, TIMEOUTS) == (before, True)
