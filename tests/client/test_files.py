"""Local files as attachments: as text where that is what they are, and as they were for the daemon."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.attachments.decode import Attachment, prepare
from sessiond.client.files import read_attachment
from sessiond.config.settings import AttachmentsConfig


def read(content: bytes) -> dict[str, str]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        return read_attachment(file.name, "a.txt")


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_the_daemon_decodes_what_was_in_the_file_and_it_never_takes_more_room_than_as_base64(content: bytes) -> None:
    parameter: dict[str, Any] = read(content)
    prepared = prepare([Attachment(**parameter)], AttachmentsConfig())
    assert [file.data for file in prepared.files] == [content]
    text = json.dumps(parameter["content"], ensure_ascii=False).encode()
    assert len(text) - 2 <= (len(content) + 2) // 3 * 4


@check_each(
    ("content", "encoding"),
    [
        (b"", "utf8"),
        (b"a line\nand another\n", "utf8"),
        ("äöü\n".encode(), "utf8"),
        (b"\x00\xff!", "base64"),
        (b"\xed\xa0\x80", "base64"),  # a lone surrogate
        (b'ab"', "utf8"),  # as long as base64
        (b'a""', "base64"),  # longer
        (b"0123456789abcdef\x1b", "utf8"),
        (b"0123456789\x00", "base64"),
    ],
)
def test_a_text_goes_as_text_unless_its_escapes_make_it_longer_than_base64(content: bytes, encoding: str) -> None:
    assert read(content)["encoding"] == encoding


def test_a_file_keeps_its_own_name_unless_another_is_given(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"x")
    assert read_attachment(str(tmp_path / "notes.txt")) == {"name": "notes.txt", "content": "x", "encoding": "utf8"}
