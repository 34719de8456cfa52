"""The known agent programs: how each is started, and how its output is parsed."""

from sessiond.runtimes.presets import claude, codex, gemini, opencode, pi
from sessiond.runtimes.presets.preset import Preset

PRESETS: dict[str, Preset] = {module.PRESET.name: module.PRESET for module in (claude, codex, gemini, opencode, pi)}

__all__ = ["PRESETS", "Preset"]
