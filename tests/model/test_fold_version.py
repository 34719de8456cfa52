"""An index, or a snapshot, holds entries that a fold computed, so a change of the fold must raise its version."""

from __future__ import annotations

import inspect
from hashlib import blake2b
from typing import Any

from sessiond.model import (
    decoding_cost,
    entry,
    fold,
    foreign_fold,
    lax,
    line_facts,
    message_list,
    patching,
    question,
    question_fold,
    record,
    replica_fold,
    source_facts,
    title,
    usage,
    usage_rows,
)
from sessiond.model.dialects import (
    claude,
    claude_content,
    codex,
    codex_items,
    foreign_line,
    gemini,
    generic,
    opencode,
    pi,
)
from sessiond.sources import event_files, reading, unpacking
from sessiond.store import folding, tail

# (version, hash). The hash differs? Then the fold was changed. Where the same lines may now give another entry, raise
# FOLD_VERSION in sessiond/model/fold.py; where they cannot (a comment, a name), leave it. Then put the new hash here.
PINNED = (21, "8c4059d0452b97277de5f21c")
# As above, of the sessions of other programs: FOREIGN_FOLD_VERSION in sessiond/model/foreign_fold.py.
PINNED_FOREIGN = (1000019, "4e4e6892700e8558e9c3e414")
# What replicas have besides: REPLICA_FOLD_VERSION in sessiond/model/replica_fold.py, which rises with FOLD_VERSION too.
PINNED_REPLICA = (2001021, "ded76b62f865fcbb7efe9473")


def source_of_the_fold() -> str:
    """The source of all code that decides what entry a transcript gives."""
    parts = (
        fold,
        question_fold,
        question,
        patching,
        entry,
        lax,
        decoding_cost,
        usage,
        usage_rows,
        record.parse,
        record._timestamp_ms,
        record.Record,
        folding,
        tail,
    )
    return _hash(*parts)


def source_of_the_foreign_fold() -> str:
    """The same for the transcripts of other programs."""
    dialects = (claude, claude_content, codex, codex_items, foreign_line, gemini, generic, opencode, pi)
    lines = (event_files._line_of, event_files._ROWS, unpacking._split_document, unpacking._line_of)
    facts = (decoding_cost, line_facts, message_list, record.Record, source_facts, title, usage, usage_rows, lax)
    return _hash(foreign_fold, entry, *facts, *dialects, *lines, reading.begin_again)


def source_of_the_replica_fold() -> str:
    """What is different for transcripts of other machines."""
    return _hash(replica_fold, foreign_fold.begin_foreign)


def _hash(*parts: Any) -> str:
    text = "\n".join(part if isinstance(part, str) else inspect.getsource(part) for part in parts)
    return blake2b(text.encode(), digest_size=12).hexdigest()


def test_fold_version_is_raised_when_the_fold_source_changes():
    assert (fold.FOLD_VERSION, source_of_the_fold()) == PINNED


def test_the_version_of_the_replica_fold_is_raised_when_its_source_changes():
    assert (replica_fold.REPLICA_FOLD_VERSION, source_of_the_replica_fold()) == PINNED_REPLICA


def test_the_version_of_the_foreign_fold_is_raised_when_its_source_changes():
    assert (foreign_fold.FOREIGN_FOLD_VERSION, source_of_the_foreign_fold()) == PINNED_FOREIGN
