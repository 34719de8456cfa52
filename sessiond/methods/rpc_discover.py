"""`rpc.discover`: the OpenRPC document, generated from the method table."""

from __future__ import annotations

from typing import Any

import msgspec

from sessiond.methods.params import NoParams
from sessiond.methods.services import Context
from sessiond.rpc.method import Method
from sessiond.tasks import run_in_thread


async def handle(ctx: Context, params: NoParams) -> msgspec.Raw:  # noqa: ARG001
    services = ctx.services
    if services.document is None:
        # In a worker thread, because it takes 25 ms.
        services.document = await run_in_thread(services.discover)
    await ctx.reserve(len(memoryview(services.document)))
    return services.document


METHOD = Method(
    "rpc.discover",
    None,
    NoParams,
    dict[str, Any],
    handle,
    "The OpenRPC document of this daemon.",
    before_ready=True,
)
