"""Copies of another machine's transcripts, as they are at a moment."""

from __future__ import annotations

from contextlib import suppress

from support.nats_machines import LinkedMachine


def copies_in(machine: LinkedMachine, other: str) -> dict[str, bytes]:
    """The bytes of each, by session id; without those that the link removes meanwhile."""
    found: dict[str, bytes] = {}
    for path in (machine.store / "machines" / other).glob("agents/*/sessions/[!.]*.jsonl"):
        with suppress(FileNotFoundError):
            found[path.stem] = path.read_bytes()
    return found
