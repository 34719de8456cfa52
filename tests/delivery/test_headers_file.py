"""The file with the headers of a POST: what it may hold, and who may read it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.config.notify import NotifyRule
from sessiond.delivery.headers_file import MAX_FILE_BYTES, BadHeaders, parse_headers, read_headers
from sessiond.delivery.unusable_targets import find_unusable_targets


def write(tmp_path: Path, text: str, mode: int = 0o600) -> Path:
    path = tmp_path / "headers"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_headers_are_one_a_line_beside_comments_and_empty_lines(tmp_path: Path) -> None:
    path = write(tmp_path, "# of ntfy\r\nAuthorization: Bearer tk_a:b\r\n\n  X-Tags:warning, robot  \nPriority: 4")
    assert read_headers(path) == [
        ("Authorization", "Bearer tk_a:b"),
        ("X-Tags", "warning, robot"),
        ("Priority", "4"),
    ]


@check_each(
    ("text", "reason"),
    [
        ("Authorization", "headers:1: no header like"),
        ("A: b\nno header: x\n", "headers:2: no header like"),
        ("A:", "headers:1: no header like"),
        ("A: ü", "headers:1: no header like"),
        ("A: b\x00", "headers:1: no header like"),
        ("A: b\rHost: c", "headers:1: no header like"),
        ("host: evil.example", "headers:1: host is not for this file to say"),
        ("Transfer-Encoding: chunked", "headers:1: Transfer-Encoding is not for this file to say"),
        ("Content-Length: 1", "headers:1: Content-Length is not for this file to say"),
        ("A: b\n" * 65, "has over 64 headers"),
        ("x" * (MAX_FILE_BYTES + 1), "is over 65536 bytes long"),
    ],
)
def test_a_file_with_anything_else_is_refused_without_showing_it(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(BadHeaders, match=reason) as caught:
        read_headers(write(tmp_path, text))
    assert "ü" not in str(caught.value)


@check_each("mode", [0o640, 0o604, 0o620, 0o602, 0o610])
def test_a_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(BadHeaders, match="can be read or written by others; run chmod 600 on it"):
        read_headers(write(tmp_path, "A: b", mode))


def test_what_is_no_file_is_refused_and_waited_for_by_nobody(tmp_path: Path) -> None:
    for name, make in (("none", lambda _path: None), ("fifo", os.mkfifo), ("folder", os.mkdir)):
        make(tmp_path / name)
        with pytest.raises(BadHeaders, match=f"headersFile {name} (cannot be read|is no regular file)"):
            read_headers(tmp_path / name)


def test_rules_that_will_reach_nobody_are_found_before_they_are_needed(tmp_path: Path) -> None:
    good, bad = write(tmp_path, "A: b"), tmp_path / "none"
    rules = (
        NotifyRule(command=("sh", "{text}")),
        NotifyRule(command=("notify-sned", "{text}")),
        NotifyRule(command=(str(tmp_path / "script"),)),
        NotifyRule(url="http://x/", headers_file=good),
        NotifyRule(url="http://x/", headers_file=bad),
        NotifyRule(command=(str(good),)),
        NotifyRule(command=(good.name,)),
        NotifyRule(command=(str(tmp_path),)),
    )
    assert [what for what, _ in find_unusable_targets(rules, f"{os.environ['PATH']}:{tmp_path}")] == [
        "notify[1]: the program notify-sned is not there",
        f"notify[2]: the program {tmp_path}/script is not there",
        "notify[4]: headersFile none cannot be read: No such file or directory",
        f"notify[5]: the program {good} may not be executed",
        f"notify[6]: the program {good} may not be executed",
        f"notify[7]: the program {tmp_path} is not there",
    ]


@given(st.text() | st.lists(st.text("aZ-: \t\r\n\x00#é")).map("\n".join))
def test_any_text_gives_headers_that_can_be_sent_or_is_refused(text: str) -> None:
    try:
        found = parse_headers(text, "headers")
    except BadHeaders:
        return
    for name, value in found:
        assert name and value and (name + value).isascii() and (name + value.replace("\t", "")).isprintable()
