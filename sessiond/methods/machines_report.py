"""`machines.report`: the program that links this machine with others says which of them it reaches."""

from __future__ import annotations

from typing import Annotated

from sessiond.errors import Forbidden
from sessiond.methods.params import MachineName, Params, Result, says
from sessiond.methods.services import Context, Services
from sessiond.model.event import MachineChanged
from sessiond.rpc.method import Method


class MachinesReportParams(Params, frozen=True, kw_only=True):
    machine: Annotated[MachineName, says("The other machine, by its name here.")]
    present: Annotated[bool, says("Whether it is reached.")]


class MachinesReportResult(Result, frozen=True, kw_only=True):
    machine: Annotated[str, says("The machine.")]
    away_since: Annotated[int | None, says("Since when it is away, in milliseconds since 1970.")] = None


def handle(ctx: Context, params: MachinesReportParams) -> MachinesReportResult:
    if ctx.caller.kind != "owner":
        raise Forbidden(f"`{METHOD.name}` is for the owner, on the owner's socket and without a token.")
    services, peer, machine = ctx.services, ctx.require_peer(), params.machine
    presence = services.store.machines
    if presence.report(machine, peer, present=params.present):
        _publish(services, machine)
    if peer not in services.linking:
        services.linking.add(peer)
        peer.on_close(lambda: _lose(services, peer))
    return MachinesReportResult(machine=machine, away_since=presence.away_since(machine))


def _lose(services: Services, peer: object) -> None:
    services.linking.discard(peer)
    for machine in services.store.machines.forget(peer):
        _publish(services, machine)


def _publish(services: Services, machine: str) -> None:
    services.bus.publish(MachineChanged(f"{machine}/agent:", machine, services.store.machines.away_since(machine)))


METHOD = Method(
    "machines.report",
    "admin",
    MachinesReportParams,
    MachinesReportResult,
    handle,
    "Tell whether another machine is reached, for as long as this connection is open.",
    streams=True,
)
