"""The daemon as its owner's programs use it: what the parts of the link need of `DaemonClient`."""

from __future__ import annotations

from typing import Any, Protocol


class OwnerDoor(Protocol):
    """`call` waits while the daemon is away, and repeats what does no harm; ClientError."""

    async def call(self, method: str, params: dict[str, Any] | None = None, /, **more: Any) -> Any: ...

    async def current_link(self) -> object:
        """Returns once the daemon is there."""
