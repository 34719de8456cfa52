"""The table of transcript dialects. A new one is a module beside `v3.py`, a name here, and lines in the tests."""

from sessiond.model.dialects import claude, codex, gemini, machine, opencode, pi, v3
from sessiond.model.dialects.dialect import TranscriptDialect

_MODULES = (v3, claude, codex, gemini, opencode, pi, machine)
DIALECTS: dict[str, TranscriptDialect] = {module.DIALECT.name: module.DIALECT for module in _MODULES}
V3 = v3.DIALECT

__all__ = ["DIALECTS", "V3", "TranscriptDialect"]
