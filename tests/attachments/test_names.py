"""Names of attachments: which are refused and why, duplicates, and mount paths."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.attachments.names import check_duplicates, check_mount_path, check_name, collision_key
from sessiond.errors import InvalidParams

FIELD = "$.attachments[0].name"

REFUSED = {
    "": "it is empty",
    "..": "it starts or ends with a dot or a space",
    ".": "it starts or ends with a dot or a space",
    "../x": "it holds a slash or backslash",
    "/etc/passwd": "it holds a slash or backslash",
    "/dev/null": "it holds a slash or backslash",
    "a/b": "it holds a slash or backslash",
    "..\\x": "it holds a slash or backslash",
    "C:\\x": "it holds a slash or backslash",
    "a\0b": "it holds a control character, U+0000",
    "a\nb": "it holds a control character, U+000A",
    "a\x1bb": "it holds a control character, U+001B",
    "a\x7f": "it holds a control character, U+007F",
    "a\x85": "it holds a control character, U+0085",
    "a\u202etxt.exe": "it holds a format or bidi character, U+202E",
    "a\u2066b": "it holds a format or bidi character, U+2066",
    "a\u200fb": "it holds a format or bidi character, U+200F",
    "a\u200bb": "it holds a format or bidi character, U+200B",
    "\ufeffa": "it holds a format or bidi character, U+FEFF",
    "a\u00adb": "it holds a format or bidi character, U+00AD",
    "a\U000e0041": "it holds a format or bidi character, U+E0041",
    "a\u2028b": "it holds a line separator, U+2028",
    "a\u2029b": "it holds a paragraph separator, U+2029",
    "a\ud800": "it holds a lone surrogate, U+D800",
    "\udfff": "it holds a lone surrogate, U+DFFF",
    "e\u0301": "it is not in Unicode's normal form NFC",
    "\u212b": "it is not in Unicode's normal form NFC",
    ".hidden": "it starts or ends with a dot or a space",
    "a.": "it starts or ends with a dot or a space",
    " a": "it starts or ends with a dot or a space",
    "a ": "it starts or ends with a dot or a space",
    "a\u00a0": "it starts or ends with a dot or a space",
    "\u3000a": "it starts or ends with a dot or a space",
    "manifest.json": "manifest.json is written by the daemon",
    "MANIFEST.json": "manifest.json is written by the daemon",
    "manife\u017ft.json": "manifest.json is written by the daemon",
    "x" * 256: "it has 256 bytes of UTF-8, more than 255",
    "é" * 128: "it has 256 bytes of UTF-8, more than 255",
}
ACCEPTED = [
    "a", "a.b", "a b", "notes.txt", "é", "日本語.txt", "a..b", "x" * 255, "é" * 127 + "x", "manifest.json.txt",
    "~", "-rf", "$HOME", "a:b", "<b>", "'", '"', "`id`", "*", "CON", "nul.txt", "COM1", "aux", "null", "🙂",
]  # fmt: skip


@check_each("name", REFUSED)
def test_a_bad_name_is_refused_with_its_field_and_reason(name: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        check_name(name, FIELD)
    error = caught.value
    assert (error.code, error.data) == ("attachments_invalid_name", {"field": FIELD, "reason": REFUSED[name]})
    assert error.message == (
        f"`{FIELD}`: an attachment cannot have this name: {REFUSED[name]}. Rename it and send again."
    )


@check_each("name", ACCEPTED)
def test_an_ordinary_name_is_accepted_unchanged(name: str) -> None:
    assert check_name(name, FIELD) == name


@given(st.text(max_size=300))
def test_an_accepted_name_is_a_valid_file_name_and_follows_the_rules(name: str) -> None:
    try:
        check_name(name, FIELD)
    except InvalidParams:
        return
    assert 1 <= len(name.encode()) <= 255
    assert unicodedata.is_normalized("NFC", name)
    assert not {unicodedata.category(c) for c in name} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert not set(name) & set("/\\")
    assert name == name.strip().strip(".")
    assert os.path.normpath(f"/a/{name}") == f"/a/{name}"


@given(st.text(st.characters(categories=("L", "N")), min_size=1, max_size=40))
def test_letters_and_digits_in_nfc_are_always_accepted(text: str) -> None:
    name = unicodedata.normalize("NFC", text)
    assert check_name(name, FIELD) == name


@given(st.text(max_size=40))
def test_the_collision_key_ignores_case_and_normal_form(name: str) -> None:
    key = collision_key(name)
    assert collision_key(unicodedata.normalize("NFD", name)) == key
    assert collision_key(key) == key


@check_each(
    "names",
    [
        ["a", "a"], ["A", "a"], ["é", "e\u0301"], ["É", "e\u0301"], ["straße", "STRASSE"], ["ſ", "S"], ["K", "\u212a"],
        ["x", "a", "b", "A"], ["ﬁ", "FI"],
    ],
)  # fmt: skip
def test_names_equal_after_nfc_and_casefold_are_duplicates(names: list[str]) -> None:
    last = len(names) - 1
    first = next(i for i, name in enumerate(names) if collision_key(name) == collision_key(names[last]))
    with pytest.raises(InvalidParams) as caught:
        check_duplicates(names)
    assert (caught.value.code, caught.value.data) == (
        "attachments_duplicate_name",
        {"field": f"$.attachments[{last}].name", "first": f"$.attachments[{first}].name"},
    )


def test_names_that_only_look_alike_are_not_duplicates() -> None:
    check_duplicates(["a", "\u0430", "b", "ab", "a b", "1", "l"])


@check_each(
    ("path", "clean"),
    [
        ("/a", "/a"), ("/mnt/attachments", "/mnt/attachments"), ("/a//b/", "/a/b"), ("//a", "/a"), ("/./a/.", "/a"),
        ("/A-z_0.9", "/A-z_0.9"), ("/...", "/..."), ("/a..b", "/a..b"), ("/" + "x" * 255, "/" + "x" * 255),
        ("/x" * 2047, "/x" * 2047),
    ],
)  # fmt: skip
def test_a_valid_mount_path_is_normalised(path: str, clean: str) -> None:
    assert check_mount_path(path) == clean


@check_each(
    "path",
    [
        "", "a", "./a", "a/b", "/", "//", "/.", "/..", "/a/../b", "/a/..", "/a b", "/a\n", "/a:b", "/é", "/a\\b",
        "/$HOME", "/a\0", "~/a", "/" + "x" * 256, "/x" * 2048,
    ],
)  # fmt: skip
def test_any_other_mount_path_is_refused(path: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        check_mount_path(path)
    assert (caught.value.code, caught.value.data["field"]) == (
        "attachments_invalid_mount_path",
        "$.attachAs.mountPath",
    )


@given(st.text(st.sampled_from("/.a-_ \n:"), max_size=12))
def test_an_accepted_mount_path_is_absolute_and_has_no_parent_references(path: str) -> None:
    try:
        clean = check_mount_path(path)
    except InvalidParams:
        return
    assert clean == os.path.normpath(clean) == os.path.normpath(path).replace("//", "/")
    assert Path(clean).is_absolute() and ".." not in Path(clean).parts and clean != "/"
