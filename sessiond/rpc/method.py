"""What a method is, and what its handler is given. Knows no method by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from sessiond.model.caller import Caller, Scope
from sessiond.rpc.messages import RequestId

if TYPE_CHECKING:
    from sessiond.rpc.peer import Peer

S = TypeVar("S")


class Context(Generic[S]):
    """What a handler is given beside its params.

    `caller` is whom every check is made against; where a request carried `_meta`, it may differ from `peer.caller`.
    `request_id` is None for a notification too. `params_meta` is the `_meta` object of the params.
    """

    __slots__ = ("caller", "params_meta", "peer", "request_id", "services")

    def __init__(
        self,
        *,
        caller: Caller,
        peer: Peer,
        services: S,
        request_id: RequestId = None,
        params_meta: Mapping[str, Any] | None = None,
    ) -> None:
        self.caller = caller
        self.peer = peer
        self.services = services
        self.request_id = request_id
        self.params_meta = params_meta


@dataclass(frozen=True, slots=True)
class Method:
    """One entry of the method table.

    `handle(context, params)` is a plain function where it does not wait: it is then answered in the read loop, at half
    the cost. An async one gets a task, and counts as a request in flight.

    `scope` None asks for no scope, but still for a caller who is somebody, unless `before_auth`. While a method of
    `before_auth` runs, nothing else of its connection is read: what follows is judged by what it made of the caller.
    `streams` marks what needs a lasting connection; `POST /rpc` refuses it.
    """

    name: str
    scope: Scope | None
    params: type[msgspec.Struct]
    result: Any
    handle: Callable[[Context[Any], Any], Any]
    summary: str
    aliases: tuple[str, ...] = ()
    before_auth: bool = False
    streams: bool = False
