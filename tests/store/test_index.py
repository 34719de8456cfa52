"""sessions.json: what is restored from it, and that any damage to it is harmless."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.model.dialects import V3
from sessiond.model.entry import Entry, FileFacts, KeyedRun, LiveRun
from sessiond.store import dirfd, index, layout
from sessiond.store.catalog import Folder, Session

EMPTY = index.Index(ours={}, foreign={})


def session(number: int, **more: object) -> Session:
    entry = Entry(
        session_id=f"s{number}",
        session_key=f"agent:main:{number}",
        updated_at=number,
        file=FileFacts(bytes=10, mtime_ns=20, inode=30, folded_to=9, last_id="x", check=7),
        **more,  # type: ignore[arg-type]
    )
    return Session(key=entry.session_key, entry=entry, folder=Folder("main", -1, dialect=V3))


def test_a_saved_index_loads_with_the_same_entries(tmp_path, folder):
    sessions = [session(number, label=f"label {number}") for number in range(3)]
    sessions[0].entry = session(
        0,
        runs=(LiveRun(run_id="r", offset=5, accepted_at=1),),
        keyed=(KeyedRun("k", "r", "hash"),),
        delivery_context={"channel": "telegram", "nested": {"a": [1.5, None]}},
        estimated_cost_usd=0.1 + 0.2,
    ).entry
    index.save(folder.fd, index.encode_index(sessions))
    assert index.load(folder.fd) == index.Index(ours={s.session_id: s.entry for s in sessions}, foreign={})


def test_the_file_is_one_json_object_with_one_session_a_line_and_mode_0600(tmp_path, folder):
    index.save(folder.fd, index.encode_index([session(1), session(2)]))
    file = tmp_path / "sessions.json"
    assert list(json.loads(file.read_text())) == ["agent:main:1", "agent:main:2"]
    assert [line[:15] for line in file.read_text().splitlines()] == ["{", '"agent:main:1":', '"agent:main:2":', "}"]
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["sessions.json"]


def test_superseded_sessions_keep_their_own_lines(folder):
    newer, older = session(2), session(1)
    older.key = newer.key
    older.superseded = True
    index.save(folder.fd, index.encode_index([newer, older]))
    assert set(index.load(folder.fd).ours) == {"s1", "s2"}


@check_each("count", [0, 1, index.CHUNK - 1, index.CHUNK, index.CHUNK + 1, 2 * index.CHUNK])
def test_an_index_of_any_length_is_one_json_object(count):
    pieces = list(index.encode_index(session(number) for number in range(count)))
    assert len(pieces) == count // index.CHUNK + 1
    assert len(json.loads(b"".join(pieces))) == count


def test_a_missing_index_loads_as_empty(folder):
    assert index.load(folder.fd) == EMPTY


@pytest.mark.parametrize(
    "content",
    [b"", b"null", b"[]", b'"x"', b'{"agent:main:main": {"sess', b"\xff", b'{"a":' * 100_000, b"{}{}"],
)
def test_a_damaged_index_loads_as_empty_and_is_reported_as_torn(tmp_path, folder, content):
    (tmp_path / "sessions.json").write_bytes(content)
    found = index.load(folder.fd)
    assert (found.ours, found.foreign) == ({}, {})
    assert (found.damaged, found.torn, found.unread) == (["the file (torn or not JSON)"], True, False)


@pytest.mark.parametrize("size", [0.5, 0.9, None])
def test_a_damaged_index_of_sessiond_is_not_waited_for(tmp_path, folder, size):
    """sessiond replaces its index atomically, so a torn one is not being written: it can be rebuilt at once, and
    nothing in it needs to be kept."""
    data = b"".join(index.encode_index([session(number) for number in range(3)]))
    (tmp_path / "sessions.json").write_bytes(b"\0" * 512 if size is None else data[: int(len(data) * size)])
    found = index.load(folder.fd)
    assert (found.ours, found.foreign, found.damaged) == ({}, {}, ["the file (torn or not JSON)"])
    assert (found.torn, found.is_unknown_at(found.mtime_ms)) == (False, False)


MS = 1_795_300_000_000


@pytest.mark.parametrize(
    ("age_ms", "written"), [(-60_000, False), (-59_999, True), (0, True), (59_999, True), (60_000, False)]
)
@pytest.mark.parametrize("content", ['{\n  "agent:main:main": {\n    "sessionId": "s1", "la', ""])
def test_an_index_that_another_program_may_be_writing_is_not_replaced(tmp_path, folder, content, age_ms, written):
    file = tmp_path / "sessions.json"
    file.write_text(content)
    os.utime(file, ns=(0, (MS - age_ms) * 10**6))
    if not written:
        index.save(folder.fd, index.encode_index([session(1)]), kept_at_ms=MS)
        assert (tmp_path / "sessions.json.damaged").read_text() == content
        assert set(index.load(folder.fd).ours) == {"s1"}
        return
    with pytest.raises(OSError) as refused:
        index.save(folder.fd, index.encode_index([session(1)]), kept_at_ms=MS)
    assert refused.value.errno == errno.EAGAIN
    assert [path.name for path in tmp_path.iterdir()] == ["sessions.json"]
    assert file.read_text() == content


@pytest.mark.parametrize("kind", ["symlink", "folder", "fifo"])
def test_anything_but_a_regular_file_is_not_read_as_an_index(tmp_path, folder, kind):
    file = tmp_path / "sessions.json"
    if kind == "symlink":
        (tmp_path / "real.json").write_text("{}")
        file.symlink_to("real.json")
    elif kind == "folder":
        file.mkdir()
    else:
        os.mkfifo(file)
    found = index.load(folder.fd)
    assert (found.ours, found.foreign, len(found.damaged)) == ({}, {}, 1)


def test_a_malformed_entry_does_not_affect_the_others(tmp_path, folder):
    good = session(1)
    pieces = b"".join(index.encode_index([good])).replace(
        b"{\n", b'{\n"agent:main:bad": {"sessionId": 5, "updatedAt": "x"},\n"agent:main:n": 7,\n', 1
    )
    (tmp_path / "sessions.json").write_bytes(pieces)
    assert index.load(folder.fd) == index.Index(
        ours={"s1": good.entry},
        foreign={"agent:main:bad": {"sessionId": 5, "updatedAt": "x"}},
        damaged=["agent:main:n"],
    )


def test_foreign_entries_are_kept_unchanged(tmp_path, folder):
    foreign = {
        "agent:main:main": {"sessionId": "s", "updatedAt": 5, "provider": "telegram", "skillsSnapshot": {"a": 1}}
    }
    (tmp_path / "sessions.json").write_text(json.dumps(foreign, indent=2))
    assert index.load(folder.fd) == index.Index(ours={}, foreign=foreign)


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_bytes_can_be_loaded_as_an_index(content):
    import os
    import tempfile

    with tempfile.TemporaryDirectory() as path:
        with open(f"{path}/sessions.json", "wb") as file:
            file.write(content)
        fd = os.open(path, os.O_RDONLY)
        try:
            index.load(fd)
        finally:
            os.close(fd)


@pytest.mark.parametrize("more", [0, 1])
def test_of_many_damaged_entries_the_first_are_named_and_the_others_counted(tmp_path, folder, more):
    keys = [f"k{number}" for number in range(index.MAX_NAMED + more)]
    (tmp_path / "sessions.json").write_text(json.dumps({key: [] for key in keys}))
    found = index.load(folder.fd)
    assert (found.damaged, found.more_damaged) == (keys[: index.MAX_NAMED], more)


@pytest.mark.parametrize(
    "damage",
    [
        {"updatedAt": 10**400},
        {"updatedAt": -1},
        {"spawn": {"ended": []}},
        {"runs": [{"runId": "r", "offset": -1}]},
        {"runs": [{"runId": "r", "offset": 10**400}]},
        {"talks": [{"talkId": "t", "offset": 9}]},
        {"file": []},
        {"file": None},
        {"messageCount": "3"},
        {"deliveryContext": json.loads("[" * 200 + "]" * 200)},
    ],
)
def test_a_damaged_entry_of_sessiond_is_reported_and_not_taken_for_a_foreign_one(tmp_path, folder, damage):
    index.save(folder.fd, index.encode_index([session(1)]))
    rows = json.loads((tmp_path / "sessions.json").read_text())
    rows["agent:main:1"] |= damage
    (tmp_path / "sessions.json").write_text(json.dumps(rows))
    assert index.load(folder.fd) == index.Index(ours={}, foreign={}, damaged=["agent:main:1"])


def test_a_foreign_index_with_text_cut_within_an_emoji_is_read(tmp_path, folder):
    (tmp_path / "sessions.json").write_text('{"agent:main:main": {"sessionId": "s", "displayName": "cut \\ud83d"}}')
    found = index.load(folder.fd)
    assert found == index.Index(ours={}, foreign={"agent:main:main": {"sessionId": "s", "displayName": "cut \ufffd"}})


def test_an_index_over_the_size_limit_is_not_read(tmp_path, folder):
    with open("sessions.json", "wb", opener=lambda name, flags: os.open(name, flags, 0o600, dir_fd=folder.fd)) as file:
        file.truncate(layout.MAX_INDEX_BYTES + 1)
    found = index.load(folder.fd)
    assert found.damaged == [f"the file (larger than {layout.MAX_INDEX_BYTES} bytes)"]
    # It may belong to another program, so it is kept under another name.
    assert found.torn


ROWS = st.dictionaries(
    st.text(max_size=20),
    st.fixed_dictionaries(
        {"sessionId": st.text(min_size=1, max_size=8), "sessionKey": st.sampled_from(["agent:main:1", ""])},
        optional={
            "file": st.just({"bytes": 10, "inode": 30, "foldedTo": 9}) | st.just({"bytes": 1, "foldedTo": 9}),
            # As long as a piece that is decoded at once.
            "displayName": st.text() | st.integers(1, 3).map(lambda times: '"},\n"{' * times * 30_000),
            "cwd": st.sampled_from(["/a", "/b", 7]),
            "updatedAt": st.integers(-1, 3),
            "createdAt": st.integers(0, 3),
            "deliveryContext": st.integers(1, 200).map(lambda depth: {"a": json.loads("[" * depth + "]" * depth)}),
            "what no entry has": st.none() | st.text(),
        },
    ),
    max_size=6,
)


@given(ROWS)
def test_it_loads_the_same_whether_it_has_the_form_of_the_daemons_own_or_another(rows):
    lines = [f"{json.dumps(key)}: {json.dumps(row)}" for key, row in rows.items()]
    found = []
    with tempfile.TemporaryDirectory() as name, dirfd.closing(os.open(name, os.O_RDONLY)) as fd:
        for text in ("{\n" + ",\n".join(lines) + "\n}\n", json.dumps(rows, indent=2)):
            Path(name, layout.INDEX).write_text(text)
            found.append(index.load(fd))
    own, other = found
    assert own == other


def test_values_that_sessions_have_in_common_are_in_memory_once(folder):
    names = ("cwd", "model", "model_provider", "status")
    values = {name: f"/{name * 10}" for name in names}
    index.save(folder.fd, index.encode_index([session(number, **values) for number in range(2)]))
    one, other = index.load(folder.fd).ours.values()
    for name in names:
        assert getattr(one, name) is getattr(other, name)
        assert getattr(one, name) == values[name]
