"""Which paths are sessions of which program, and that any other path is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.model.keys import NATIVE_ID
from sessiond.model.source_facts import FoundFacts
from sessiond.sources import claude, codex, gemini, pi
from sessiond.sources.finder import BadName, FoundFile, SourceFinder
from sessiond.sources.table import SOURCE_NAMES, root_of
from sessiond.store import dirfd

UUID = "0e821bfa-1111-4222-8333-0123456789ab"
FINDERS = [claude.FINDER, codex.FINDER, gemini.FINDER, pi.FINDER]


@check_each(
    ("finder", "place", "found"),
    [
        (claude.FINDER, f"projects/-home-me/{UUID}.jsonl", FoundFile(UUID)),
        (claude.FINDER, f"projects/-x/{UUID}/subagents/agent-a1.jsonl", FoundFile("agent-a1", UUID)),
        (claude.FINDER, f"projects/-x/{UUID}/tool-results/a.jsonl", None),
        (claude.FINDER, "history.jsonl", None),
        (claude.FINDER, "projects/-x/sessions-index.json", None),
        (claude.FINDER, f"sessions/{UUID}.key", None),
        (codex.FINDER, f"sessions/2026/01/02/rollout-2026-01-02T03-04-05-{UUID}.jsonl", FoundFile(UUID)),
        (codex.FINDER, f"sessions/2026/01/02/rollout-x-{UUID}.jsonl.zst", FoundFile(UUID, is_compressed=True)),
        (codex.FINDER, f"archived_sessions/rollout-2026-01-02T03-04-05-{UUID}.jsonl", FoundFile(UUID)),
        (codex.FINDER, "auth.json", None),
        (codex.FINDER, "session_index.jsonl", None),
        (codex.FINDER, f"sessions/2026/01/rollout-x-{UUID}.jsonl", None),
        (gemini.FINDER, "tmp/work/chats/session-2026-0e821bfa.jsonl", FoundFile("session-2026-0e821bfa")),
        (gemini.FINDER, f"tmp/work/chats/{UUID}/sub.jsonl", FoundFile("sub", UUID)),
        (gemini.FINDER, "tmp/work/logs.json", None),
        (gemini.FINDER, "oauth_creds.json", None),
        (pi.FINDER, f"sessions/--home--/2026-01-02_{UUID}.jsonl", FoundFile(UUID)),
        (pi.FINDER, f"sessions/2026-01-02_{UUID}.jsonl", None),
    ],
)  # fmt: skip
def test_a_path_is_the_session_that_its_program_puts_there(
    finder: SourceFinder, place: str, found: FoundFile | None
) -> None:
    assert finder.session_of(place) == found
    if found is not None:
        folders = place.split("/")[:-1]
        assert all(finder.enters("/".join(folders[:depth])) for depth in range(len(folders) + 1))


@pytest.mark.parametrize("place", ["projects/-x/a b.jsonl", "projects/-x/..jsonl", "projects/-\udcff/abc.jsonl"])
def test_a_file_whose_name_is_no_id_or_no_text_is_told_from_one_that_is_no_session(place: str) -> None:
    with pytest.raises(BadName):
        claude.FINDER.session_of(place)


PARTS = st.one_of(
    st.sampled_from(
        ["projects", "sessions", "tmp", "chats", "subagents", "archived_sessions", "2026", "01", "..", "."]
    ),
    st.sampled_from([f"{UUID}.jsonl", f"rollout-{UUID}.jsonl.zst", "agent-x.jsonl", "session-1.jsonl", "auth.json"]),
    st.text(st.characters(exclude_characters="/"), max_size=20),
)


@given(st.lists(PARTS, max_size=7), st.sampled_from(FINDERS))
def test_any_path_is_a_session_with_a_native_id_or_none(parts: list[str], finder: SourceFinder) -> None:
    place = "/".join(parts)
    assert finder.enters(place) in (True, False)
    try:
        found = finder.session_of(place)
    except BadName:
        return
    if found is not None:
        assert NATIVE_ID.fullmatch(found.native_id)
        assert found.parent is None or NATIVE_ID.fullmatch(found.parent)
        assert not place.endswith((".key", ".sqlite", "auth.json", ".json"))


def test_each_program_has_its_folder_and_its_variables(tmp_path: Path) -> None:
    variables = {
        "CLAUDE_CONFIG_DIR": "/c",
        "CODEX_HOME": "/x",
        "PI_CODING_AGENT_DIR": "/p",
    }
    names = ("claude", "codex", "gemini", "pi")
    assert set(names) <= set(SOURCE_NAMES)
    assert [root_of(name, {}, tmp_path).path for name in names] == [
        tmp_path / ".claude",
        tmp_path / ".codex",
        tmp_path / ".gemini",
        tmp_path / ".pi" / "agent",
    ]
    assert [str(root_of(name, variables, tmp_path).path) for name in ("claude", "codex", "pi")] == ["/c", "/x", "/p"]
    assert root_of("claude", {"CLAUDE_CONFIG_DIR": "relative"}, tmp_path).path == tmp_path / ".claude"
    assert root_of("claude", variables, tmp_path, Path("/configured")).path == Path("/configured")
    sessions = root_of("pi", {"PI_CODING_AGENT_SESSION_DIR": "/s"}, tmp_path)
    assert (sessions.path, sessions.finder.session_of(f"t_{UUID}.jsonl")) == (Path("/s"), FoundFile(UUID))


def test_what_stands_beside_a_session_says_its_title_and_its_folder(tmp_path: Path) -> None:
    agent = f"projects/-x/{UUID}/subagents/agent-a.jsonl"
    meta = tmp_path / agent.replace(".jsonl", ".meta.json")
    meta.parent.mkdir(parents=True)
    meta.write_text('{"description": "Look for the bug", "agentType": 7}')
    chats = tmp_path / "tmp" / "work"
    chats.mkdir(parents=True)
    (chats / ".project_root").write_text("/home/me/work\n")
    with dirfd.closing(dirfd.open_root(tmp_path)) as fd:
        assert claude.FINDER.facts_beside(fd, agent) == FoundFacts(parent=UUID, title="Look for the bug")
        assert claude.FINDER.find_described(str(meta.relative_to(tmp_path))) == agent
        assert gemini.FINDER.facts_beside(fd, "tmp/work/chats/s.jsonl") == FoundFacts(cwd="/home/me/work")
        for damage in (b"", b"\xff\0", b"[" * 70_000, b"x" * 100_000, b'{"description": 5}'):
            meta.write_bytes(damage)
            (chats / ".project_root").write_bytes(damage)
            assert claude.FINDER.facts_beside(fd, agent) == FoundFacts(parent=UUID)
            assert gemini.FINDER.facts_beside(fd, "tmp/work/chats/s.jsonl") == FoundFacts()
        meta.unlink()
        os.mkfifo(meta)
        assert claude.FINDER.facts_beside(fd, agent) == FoundFacts(parent=UUID)
