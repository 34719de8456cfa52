"""One daemon for all method tests, and each test once per transport; by default over one of them (`sampling.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from support.method_calls import Call, CallFailed
from support.real_daemon import Daemon
from support.sampling import share_out
from support.single_calls import SINGLE_CALLS

CONFIG = """
[[agents.list]]
id = "main"
default = true
runtime = { type = "echo" }

[[agents.list]]
id = "other"
runtime = { type = "echo" }
"""


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that many tests share; each makes sessions of its own."""
    made = Daemon(tmp_path_factory.mktemp("shared")).start(CONFIG)
    yield made
    made.stop()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What a method does is one code; `tests/trust/test_matrix.py` calls each method over each transport."""
    share_out(metafunc, "call", sorted(SINGLE_CALLS))


@pytest.fixture
def call(request: pytest.FixtureRequest, shared: Daemon) -> Call:
    """`call(method, **params)` as the owner or by a token, over each transport in turn. CallFailed for an error."""
    road = SINGLE_CALLS[request.param]

    def ask(method: str, /, by: str | None = None, **params: Any) -> Any:
        answer = road(shared, "sessiond", by, method, params)
        if "error" in answer:
            raise CallFailed(answer["error"])
        return answer["result"]

    return ask


@pytest.fixture
def fresh(shared: Daemon) -> str:
    """The key of a new session with one exchange in it: `hello` and its echo."""
    key = f"agent:main:test:{uuid4()}"
    shared.reply(key, "hello")
    return key
