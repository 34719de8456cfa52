"""`rpc.discover`: the OpenRPC document, generated from the method table."""

from __future__ import annotations

from typing import Any

import msgspec
import trio

from sessiond.methods.params import NoParams
from sessiond.methods.services import Context
from sessiond.rpc.method import Method


async def handle(ctx: Context, params: NoParams) -> msgspec.Raw:  # noqa: ARG001
    # Built at the first call, which takes 25 ms: others get their turn meanwhile.
    return await trio.to_thread.run_sync(ctx.services.discover)


METHOD = Method("rpc.discover", None, NoParams, dict[str, Any], handle, "The OpenRPC document of this daemon.")
