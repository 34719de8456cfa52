"""`POST /rpc` as its handler sees it, without a socket."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio
from support.patience import PATIENCE_S

from sessiond.model.caller import Caller
from sessiond.rpc.budget import MIB
from sessiond.rpc.dispatch import Dispatcher
from sessiond.rpc.limits import Limits
from sessiond.rpc.method import Context, Method
from sessiond.transports.active_connections import ActiveConnections
from sessiond.transports.exchange import HttpRequest, HttpResponse
from sessiond.transports.routes import call_over_http

READER = Caller(kind="token", scopes=frozenset(["read"]), token_id="t-reader")
CALL = b'{"jsonrpc":"2.0","id":1,"method":"large"}'


class Params(msgspec.Struct):
    pass


async def large(ctx: Context[None], params: Params) -> Any:
    await ctx.reserve(MIB)
    return {"texts": [msgspec.Raw(b'"' + b"x" * 65536 + b'"') for _ in range(4)]}


@pytest.mark.parametrize("body", [CALL, b"[" + CALL + b"]"])
async def test_a_client_that_hangs_up_at_any_moment_leaves_no_memory_reserved(body: bytes) -> None:
    method = Method("large", None, Params, dict, large, "Has a large answer.")
    faults: list[BaseException] = []
    dispatcher = Dispatcher([method], None, limits=Limits(), on_fault=lambda _what, error: faults.append(error))
    answered = 0
    for checkpoints in range(1000):
        request = HttpRequest("POST", "/rpc", {}, {}, {"content-type": "application/json"}, body, READER)
        answers: list[HttpResponse] = []

        async def call(request: HttpRequest = request, answers: list[HttpResponse] = answers) -> None:
            answers.append(await call_over_http(dispatcher, ActiveConnections(), request))

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call)
                for _ in range(checkpoints):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
        for share in request.unsent:  # as the connection does
            share.release()
        assert dispatcher.budgets.others.used_bytes == 0, checkpoints
        answered += len(answers)
        if answered == 3:
            break
    assert answered == 3 and faults == []
