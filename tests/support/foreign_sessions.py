"""Sessions of other programs for tests: files as pi writes them, and sources that follow a folder of them."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from support.followed_store import FollowedStore, Reader, followed_store
from support.patience import PATIENCE_S
from support.source_files import describe_message

from sessiond.config.settings import Config, SourcesConfig, parse
from sessiond.model.event import MessageEvent
from sessiond.sessions import history
from sessiond.sources.sources import Sources

UUID = "0e821bfa-1111-4222-8333-0123456789{:02x}"
FOLDER = "-home-me-work"


def pi_header(native_id: str, **more: Any) -> bytes:
    """The first line of a session of pi."""
    head = {
        "type": "session",
        "version": 3,
        "id": native_id,
        "timestamp": "2026-01-02T03:04:05.000Z",
        "cwd": "/home/me",
    }
    return json.dumps(head | more).encode() + b"\n"


def pi_line(text: str, role: str = "user", *, at_s: int = 0) -> bytes:
    """A message as pi writes it."""
    stamp = f"2026-01-02T03:{at_s // 60 % 60:02d}:{at_s % 60:02d}.000Z"
    message = {"role": role, "content": [{"type": "text", "text": text}], "timestamp": 1767323045000}
    return json.dumps({"type": "message", "id": text[:8], "timestamp": stamp, "message": message}).encode() + b"\n"


def pi_file(home: Path, number: int, *texts: str, folder: str = FOLDER, header: bool = True) -> Path:
    """Write a session of pi, and return its file."""
    native_id = UUID.format(number)
    path = home / ".pi" / "agent" / "sessions" / folder / f"2026-01-02T03-04-05-000Z_{native_id}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    data = (pi_header(native_id) if header else b"") + b"".join(map(pi_line, texts))
    with path.open("ab") as file:
        file.write(data)
    return path


def key_of(number: int) -> str:
    """The key of the session that `pi_file` wrote."""
    return f"pi:{UUID.format(number)}"


class FollowedSources:
    """A store with its feed and the sources of `home`."""

    def __init__(self, parts: FollowedStore, home: Path) -> None:
        self.parts, self.home = parts, home
        self.config: SourcesConfig = Config().sources
        self.sources: Sources

    @property
    def keys(self) -> set[str]:
        """The keys of the sessions of other programs."""
        return {session.key for session in self.parts.store.catalog.foreign.values()}

    def configure(self, text: str) -> None:
        """Change the configuration, as a SIGHUP does."""
        self.config = parse(text).sources
        self.sources.reconfigure()

    async def wait_until(self, condition: Any, what: str = "it did not happen") -> None:
        """Return when the condition holds."""
        with trio.move_on_after(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - files and threads have no event
                await trio.sleep(0.005)
            return
        raise AssertionError(f"{what}; there are {sorted(self.keys)}")

    def complaints(self, *, named: bool = True) -> list[str]:
        """What `doctor` says that is not in order; with `named` of which thing."""
        found = [one for one in self.sources.findings() if one.level != "ok"]
        return [f"{one.thing}: {one.what}" if named else one.what for one in found]

    async def read_history(self, key: str, **options: Any) -> list[str]:
        """The messages of a session, each in one line."""
        session = self.parts.session(key)
        await self.sources.complete(session)
        options = {"limit": 50, "include_tools": True, "max_bytes": 1 << 20} | options
        page = await history.page(self.parts.store, session, **options)
        return [describe_message(bytes(message)) for message in page.messages]

    async def wait_whole(self) -> None:
        """Return when every session was read whole."""
        await self.wait_until(lambda: self.sources.listed.is_set() and not self.sources.partial_count)


@asynccontextmanager
async def followed_sources(
    folder: Path, home: Path, *, config: str = "", environ: dict[str, str] | None = None, **options: Any
) -> AsyncIterator[FollowedSources]:
    """A store at `folder/store` that shows the sessions below `home`."""
    kind = options.pop("kind", "auto")
    async with followed_store(folder) as parts:
        made = FollowedSources(parts, home)
        made.config = parse(config).sources
        made.sources = Sources(
            parts.store,
            parts.feed,
            lambda: made.config,
            environ={"HOME": str(home)} | (environ or {}),
            kind=kind,
            **options,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.sources.run)
            with trio.fail_after(PATIENCE_S):
                await made.sources.listed.wait()
            yield made
            await made.sources.save()
            nursery.cancel_scope.cancel()


def shown_messages(reader: Reader) -> list[tuple[int, str]]:
    """The messages that a follower was given, each in one line, with their numbers."""
    return [(event.seq, describe_message(event.message)) for event in reader.events if isinstance(event, MessageEvent)]


def opened_paths(below: Path) -> set[str]:
    """What this process has open below a folder."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if path.startswith(str(below)):
            found.add(path)
    return found
