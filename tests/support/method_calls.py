"""What the method tests call with: `Call`, and the error that a refused call raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Call = Callable[..., Any]


class CallFailed(Exception):
    """A JSON-RPC error; `error` is the error object."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.error = error
