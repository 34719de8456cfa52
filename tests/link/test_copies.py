"""Two machines on a real server: what one appends is in the copy of the other, whatever is cut, replaced or killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.linked_machines import LinkedMachine, linked
from support.nats_server import NatsServer

pytestmark = pytest.mark.system

EXPORT_ALL = {("lap", "mars"): 'export = [{agents = ["*"]}]'}


@pytest.fixture
def server(nats_server: Any) -> NatsServer:
    running: NatsServer = nats_server("open").start()
    return running


@pytest.fixture
def machines(tmp_path: Path, server: NatsServer) -> Iterator[dict[str, LinkedMachine]]:
    with linked(tmp_path, server, ["lap", "mars"], EXPORT_ALL) as made:
        yield made


def exported(lap: LinkedMachine) -> dict[str, bytes]:
    return lap.originals()


def wait_until_equal(machines: dict[str, LinkedMachine], wanted: Callable[[], dict[str, bytes]] | None = None) -> None:
    lap, mars = machines["lap"], machines["mars"]
    mars.wait_for(lambda: mars.replicas("lap") == (wanted or lap.originals)(), "the copies are not the originals", 60)


def test_what_is_appended_here_is_in_the_copy_there(machines: dict[str, LinkedMachine]) -> None:
    lap = machines["lap"]
    lap.daemon.reply("main", "hello")
    lap.daemon.reply("agent:ops:one", "to ops")
    assert len(lap.originals()) == 2
    wait_until_equal(machines)
    lap.daemon.reply("main", "x" * 900_000)
    wait_until_equal(machines)
