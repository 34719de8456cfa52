"""The owner's page of a real daemon, as a browser has it: its address, its code and its token, over loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from support.real_daemon import PATIENCE_S, Daemon

READ_SCOPES = ("list", "read")
# Each request on a connection of its own; without certificates, which take longer to load than the request.
CLIENT = httpx.Client(verify=False, timeout=PATIENCE_S, limits=httpx.Limits(max_keepalive_connections=0))


@dataclass(frozen=True)
class OwnerPage:
    """A page that was opened: `address` ends with a slash."""

    address: str
    token: str
    id: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def call(self, method: str, /, **params: Any) -> dict[str, Any]:
        """The whole JSON-RPC answer, or the body of a refusal."""
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        got = CLIENT.post(f"{self.address}rpc", json=request, headers=self.headers)
        answer: dict[str, Any] = got.json()
        return answer

    @contextmanager
    def events(self, path: str = "events", **headers: str) -> Iterator[Iterator[tuple[str, Any]]]:
        """The events of a stream: names and data."""
        with CLIENT.stream("GET", self.address + path, headers={**self.headers, **headers}) as got:
            assert got.status_code == 200, got.read()
            yield _parse(got.iter_lines())


def _parse(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            yield name, json.loads(line[6:])


def trade(address: str, code: str, **headers: str) -> httpx.Response:
    """Ask for the token of a code, as the page does."""
    return CLIENT.post(f"{address}page/token", json={"code": code}, headers=headers)


def open_page(daemon: Daemon, *scopes: str) -> OwnerPage:
    """A page with these scopes, else one that reads."""
    opened = daemon.call("http.open", scopes=list(scopes or READ_SCOPES))
    got = trade(opened["address"], opened["code"])
    assert got.status_code == 200, got.text
    return OwnerPage(opened["address"], got.json()["token"], got.json()["id"])
