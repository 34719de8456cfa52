from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.cli.terminal.screen import Screen, TableKeys, clip, clip_around, clip_key, columns_of, pad


@given(st.text(max_size=40), st.integers(0, 30))
def test_clipped_text_fits_and_is_a_prefix(text: str, width: int) -> None:
    cut = clip(text, width)
    assert columns_of(cut) <= width
    assert cut == text or (text.startswith(cut.removesuffix("…")) and (cut.endswith("…") or width == 0))


@given(st.text(max_size=20), st.uuids().map(str) | st.text(max_size=40), st.integers(0, 70))
def test_a_clipped_key_fits_and_is_a_prefix(head: str, last: str, width: int) -> None:
    key = f"{head}:{last}"
    cut = clip_key(key, width)
    assert columns_of(cut) <= width
    assert cut == key or (key.startswith(cut.removesuffix("…")) and (cut.endswith("…") or width == 0))


def test_the_uuid_of_a_key_is_clipped_first() -> None:
    key = "agent:counter:subagent:ad5e3015-e420-59e6-be4c-6888631e407f"
    assert clip_key(key, 59) == key
    assert {clip_key(key, width) for width in (58, 40, 32)} == {"agent:counter:subagent:ad5e3015…"}
    assert clip_key(key, 31) == "agent:counter:subagent:ad5e301…"
    assert clip_key("agent:main:a-b-c-d-e-of-somebody", 16) == "agent:main:a-b-…"


def test_keys_of_one_table_are_told_from_each_other() -> None:
    # Codex' ids begin with the time: these were made in one minute.
    uuids = ("019a2f77-1b2c-7000-8000-000000000001", "019a2f77-1b9c-7000-8000-000000000002")
    other = "claude:ad5e3015-e420-49e6-be4c-6888631e407f"
    keys = TableKeys([*(f"codex:{one}" for one in uuids), other, f"claude:{uuids[0]}"])
    assert [keys.clip(f"codex:{one}", 30) for one in uuids] == ["codex:019a2f77-1b2…", "codex:019a2f77-1b9…"]
    assert keys.clip(f"claude:{uuids[0]}", 30) == "claude:019a2f77…"
    assert keys.clip(other, 30) == "claude:ad5e3015…"
    assert keys.least == 19
    assert TableKeys([]).least == TableKeys([other, "agent:main:main"]).least == 18


@given(st.lists(st.tuples(st.sampled_from(["codex", "pi", "agent:a:b"]), st.integers(0, 2**20)), max_size=8))
def test_clipped_keys_of_a_table_differ(made: list[tuple[str, int]]) -> None:
    shown = {f"{head}:{UUID(int=(number << 76) | 0x7000 << 64)}" for head, number in made}
    keys = TableKeys(shown)
    assert len({keys.clip(key, 48) for key in shown}) == len(shown)


@given(st.text(max_size=20), st.integers(0, 30), st.booleans())
def test_padded_text_has_the_width_unless_it_is_wider(text: str, width: int, right: bool) -> None:
    padded = pad(text, width, right=right)
    assert columns_of(padded) == max(width, columns_of(text))
    assert padded.strip(" ") == text.strip(" ")


def test_wide_combining_and_joined_letters_have_their_drawn_width() -> None:
    assert [columns_of(text) for text in ("abc", "漢字", "e\u0301", "한", "👍", "ﬁ")] == [3, 4, 1, 2, 2, 1]


def test_paint_adds_nothing_without_colour_style_or_text() -> None:
    assert Screen(80).paint("x", "red") == "x"
    assert Screen(80, colour=True).paint("x", "red") == "\x1b[31mx\x1b[0m"
    assert Screen(80, colour=True).paint("x", None) == "x"
    assert Screen(80, colour=True).paint("", "red") == ""


@given(st.text(max_size=60), st.text(min_size=1, max_size=8), st.text(max_size=60), st.integers(0, 90))
def test_an_excerpt_around_words_fits_and_is_part_of_the_text(before: str, words: str, after: str, width: int) -> None:
    text = before + words + after
    shown = clip_around(text, words, width)
    assert columns_of(shown) <= width
    assert shown.strip("…") in text


@check_each("at", [0, 5, 40, 100, 180, 195])
@check_each("width", [12, 20, 41, 80])
def test_an_excerpt_contains_the_words_wherever_they_are(at: int, width: int) -> None:
    text = "." * at + "Heron" + "," * (195 - at)
    shown = clip_around(text, "heron", width)
    assert "Heron" in shown
    assert columns_of(shown) == width
