"""The folders with transcripts that the store has open: of each agent the live ones, and its archive."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from sessiond.model.dialects import V3
from sessiond.store import filesystem, layout, opening
from sessiond.store.folder import Folder


class AgentFolders:
    """Opens them once, and makes them when needed. `on_opened` is told of a folder that was not open at the start."""

    def __init__(self, root_fd: int, path: Path, on_opened: Callable[[Folder], None]) -> None:
        self._root_fd, self._path, self._on_opened = root_fd, path, on_opened
        self.live: dict[str, Folder] = {}
        self.archives: dict[str, Folder] = {}

    def find(self, agent_id: str) -> Folder:
        """The agent's sessions folder, made when needed."""
        is_new = agent_id not in self.live
        folder = self.open(agent_id)
        if is_new:
            self._on_opened(folder)
        return folder

    def find_archive(self, agent_id: str) -> Folder:
        """The agent's archive, made when needed."""
        self.find(agent_id)
        return self.open_archive(agent_id)

    def open(self, agent_id: str) -> Folder:
        """As `find`, telling nobody."""
        if agent_id not in self.live:
            path = str(self._path / layout.AGENTS / agent_id / layout.SESSIONS)
            fd = opening.open_agent(self._root_fd, agent_id)
            self.live[agent_id] = Folder(agent_id, fd, V3, path=path, is_prompt=filesystem.is_prompt(path))
        return self.live[agent_id]

    def open_archive(self, agent_id: str) -> Folder:
        """As `find_archive`, telling nobody."""
        if agent_id not in self.archives:
            folder = self.open(agent_id)
            fd = opening.open_folder(folder.fd, (layout.ARCHIVE,))
            path = f"{folder.path}/{layout.ARCHIVE}"
            is_prompt = filesystem.is_prompt(path)
            self.archives[agent_id] = Folder(agent_id, fd, V3, archived=True, path=path, is_prompt=is_prompt)
        return self.archives[agent_id]

    def every(self) -> list[Folder]:
        """All that are open."""
        return [*self.live.values(), *self.archives.values()]

    def close(self) -> None:
        """Close their descriptors."""
        for folder in self.every():
            os.close(folder.fd)
