"""The agent programs that sessiond knows by name: how each is called, and how its output is read."""

from sessiond.runtimes.presets import claude, codex, gemini, opencode, pi
from sessiond.runtimes.presets.preset import Preset

PRESETS: dict[str, Preset] = {module.PRESET.name: module.PRESET for module in (claude, codex, gemini, opencode, pi)}

__all__ = ["PRESETS", "Preset"]
