"""The agent programs that sessiond knows by name."""

from sessiond.runs.presets.preset import Preset

PRESETS: dict[str, Preset] = {}
