"""The dialect of replicas: transcripts as another machine's sessiond wrote them, which are lines of our own."""

from __future__ import annotations

from msgspec.structs import replace

from sessiond.model.dialects import v3
from sessiond.model.keys import MACHINE
from sessiond.model.replica_fold import REPLICA_FOLD_VERSION, fold_replica

DIALECT = replace(v3.DIALECT, name=MACHINE, fold=fold_replica, fold_version=REPLICA_FOLD_VERSION)
