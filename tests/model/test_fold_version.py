"""An index holds entries that the fold computed, so a change of the fold must raise its version."""

from __future__ import annotations

import inspect
from hashlib import blake2b

from sessiond.model import entry, fold, lax, patching, record, usage
from sessiond.store import folding, tail

# (version, hash). The hash differs? Then the fold was changed. Where the same lines may now give another entry, raise
# FOLD_VERSION in sessiond/model/fold.py; where they cannot (a comment, a name), leave it. Then put the new hash here.
PINNED = (11, "f5e2dc780a67209a49dfd77a")


def source_of_the_fold() -> str:
    """The source of all code that decides what entry a transcript gives."""
    parts = (fold, patching, entry, lax, usage, record.parse, record._timestamp_ms, record.Record, folding, tail)
    text = "\n".join(inspect.getsource(part) for part in parts)
    return blake2b(text.encode(), digest_size=12).hexdigest()


def test_fold_version_is_raised_when_the_fold_source_changes():
    assert (fold.FOLD_VERSION, source_of_the_fold()) == PINNED
