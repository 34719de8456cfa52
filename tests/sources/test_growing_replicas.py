"""However a replica grows, cut anywhere and read at any time, its session is that of the original at that length."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.replicas import ID, STARTED_MS, custom, header, line, replace_replica, replica_path, write_replica

from sessiond.model.dialects import DIALECTS
from sessiond.model.entry import Entry, FileFacts
from sessiond.sources import machines
from sessiond.sources.root import OpenRoot
from sessiond.store import folding

RUN = {"runId": f"{ID.format(1)}.0123456789abcdef", "at": STARTED_MS}
OPTION = {"id": "a", "label": "A", "kind": "allow_once"}
LINES = [
    line("hello"),
    line("hi", "assistant", at_s=2),
    custom("sessiond/run", status="accepted", **RUN),
    custom("sessiond/run", status="ok", **RUN),
    custom("sessiond/entry", label="l", displayName="named", spawnedBy="agent:a:b"),
    custom("sessiond/question", id="0" * 16, title="q", options=[OPTION], askedAt=1),
    custom("sessiond/talk", talkId="t", status="open"),
    b"no json\n",
    b"\n",
    "ein Wörtchen 🦭\n".encode(),
]


def known(entry: Entry | None) -> Entry | None:
    """An entry without what is about the file as it was when it was read."""
    if entry is None or entry.source is None:
        return entry
    return replace(entry, file=FileFacts(folded_to=entry.file.folded_to, last_id=entry.file.last_id))


def read_anew(root: OpenRoot, place: str) -> Entry | None:
    file = root.look_at(place)
    assert file is not None
    entry = root.reader.identify(file)
    return root.reader.read_ends(file, entry) if entry is not None else None


@given(
    lines=st.lists(st.sampled_from(LINES), max_size=8),
    cuts=st.lists(st.integers(0, 3000), max_size=6),
    is_replaced=st.booleans(),
)
def test_a_replica_that_grows_in_any_pieces_is_read_as_one_that_came_at_once(
    lines: list[bytes], cuts: list[int], is_replaced: bool
) -> None:
    data = header(ID.format(1)) + b"".join(lines)
    ends = sorted({min(cut, len(data)) for cut in cuts} | {len(data)})
    with tempfile.TemporaryDirectory() as folder:
        path = replica_path(Path(folder), ID.format(1))
        write_replica(path)
        root = OpenRoot(machines.find_root(Path(folder)), DIALECTS["machine"], 8 << 20)
        place, entry = f"mars/agents/ops/sessions/{path.name}", None
        for begin, end in itertools.pairwise([0, *ends]):
            write_replica(path, data[begin:end])
            if entry is None:
                entry = read_anew(root, place)
            else:
                entry = folding.read_on(root.folder, entry, place, 8 << 20).entry
            assert known(entry) == known(read_anew(root, place))
        assert entry is not None
        assert (entry.session_key, entry.session_id) == ("mars/agent:ops:main", ID.format(1))
        if is_replaced:
            replace_replica(path, header(ID.format(1)), line("another"))
            again = folding.read_on(root.folder, entry, place, 8 << 20)
            fresh = read_anew(root, place)
            assert again.rewritten
            assert fresh is not None
            assert (
                (again.entry.message_count, again.entry.title) == (fresh.message_count, fresh.title) == (1, "another")
            )
        root.close()
