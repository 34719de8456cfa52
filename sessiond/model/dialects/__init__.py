"""The programs whose transcripts are read. A new one is a module beside `v3.py`, a word here, and its golden files."""

from sessiond.model.dialects import v3
from sessiond.model.dialects.dialect import TranscriptDialect

DIALECTS: dict[str, TranscriptDialect] = {module.DIALECT.name: module.DIALECT for module in (v3,)}
V3 = v3.DIALECT

__all__ = ["DIALECTS", "V3", "TranscriptDialect"]
