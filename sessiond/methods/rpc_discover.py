"""`rpc.discover`: the OpenRPC document, generated from the method table."""

from __future__ import annotations

from typing import Any

import msgspec

from sessiond.methods.params import NoParams
from sessiond.methods.services import Context
from sessiond.rpc.method import Method


def handle(ctx: Context, params: NoParams) -> msgspec.Raw:  # noqa: ARG001
    return ctx.services.discover()


METHOD = Method("rpc.discover", None, NoParams, dict[str, Any], handle, "The OpenRPC document of this daemon.")
