"""The model and the level of thinking of a session, set by the agent's configuration options. Source: runs.md, "acp".

Only where the agent offers the value; otherwise the run says that it could not be set.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import trio

from sessiond.errors import quote
from sessiond.runtimes.acp.connection import AgentRefused
from sessiond.runtimes.acp.process import AgentProcess
from sessiond.runtimes.presets.fields import array, text
from sessiond.runtimes.runtime import RunSpec


class ConfigOption(msgspec.Struct, frozen=True):
    """A choice that the agent offers for a session, by the ids of its values."""

    id: str
    current: str
    values: frozenset[str]


def read_options(result: Any) -> dict[str, ConfigOption]:
    """The choices in an answer of the agent, by category (`model`, `thought_level`), the first of each."""
    found: dict[str, ConfigOption] = {}
    for option in array(result, "configOptions"):
        option_id, current = text(option, "id"), text(option, "currentValue")
        values = frozenset(_values(array(option, "options")))
        if option_id and values:
            # The category is optional; the id of the choice of a model is `model` everywhere.
            found.setdefault(text(option, "category") or option_id, ConfigOption(option_id, current, values))
    return found


def _values(options: list[Any]) -> Iterator[str]:
    """The ids of the values, which may stand in groups."""
    for option in options:
        if text(option, "value"):
            yield text(option, "value")
        yield from (text(one, "value") for one in array(option, "options") if text(one, "value"))


class SessionChoices:
    """The choices of one session. `model` is the one that the agent uses, None where it does not say."""

    def __init__(self, opened: Any) -> None:
        self._options = read_options(opened)
        option = self._options.get("model")
        current = option.current if option is not None else text(opened, "models", "currentModelId")
        self.model = current[:200] or None
        self._refused: set[str] = set()
        self._notes: list[str] = []

    def take_notes(self) -> list[str]:
        """What could not be chosen; once."""
        notes, self._notes = self._notes, []
        return notes

    async def apply(self, process: AgentProcess, native_id: str, spec: RunSpec, timeout_s: float) -> None:
        """Have the agent use the model and the level of thinking of the run. AgentGone."""
        for category, wanted in (("model", spec.model), ("thought_level", spec.thinking)):
            option = self._options.get(category)
            if wanted is None or (option is not None and option.current == wanted):
                continue
            if option is None or wanted not in option.values:
                self._note(category, wanted)
                continue
            params = {"sessionId": native_id, "configId": option.id, "value": wanted}
            try:
                result = await process.connection.request("session/set_config_option", params, timeout_s)
            except (AgentRefused, trio.TooSlowError):
                self._note(category, wanted)
                continue
            # One choice may change the others.
            changed = {category: msgspec.structs.replace(option, current=wanted)}
            self._options = {**self._options, **changed, **read_options(result)}
            self.model = wanted if category == "model" else self.model

    def _note(self, category: str, wanted: str) -> None:
        """Say what the agent uses instead; of a level of thinking nothing, since few agents have the same ones."""
        if category == "model" and wanted not in self._refused:
            self._refused.add(wanted)
            used = f" and uses {quote(self.model)}" if self.model else ""
            self._notes.append(f"the agent does not offer the model {quote(wanted)}{used}")
