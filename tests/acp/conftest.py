"""One daemon and two editors made with the official SDK, for all tests of a worker: each takes seconds to start."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import acp_agent_path
from support.acp_editor import SdkEditor
from support.real_daemon import Daemon

AGENT = Path(__file__).parent.parent / "support" / "acting_agent.py"
COMMAND = json.dumps([sys.executable, str(AGENT)])
CONFIG = f"""
[[agents.list]]
id = "main"
runtime = {{ type = "exec", input = "json", output = "jsonl", command = {COMMAND} }}

[[agents.list]]
id = "echo"
runtime = {{ type = "echo" }}

[[agents.list]]
id = "speaker"
runtime = {{ type = "acp", command = ["{sys.executable}", "-S", "{acp_agent_path.PATH}"], permissions = "allow" }}

[[agents.list]]
id = "asker"
runtime = {{ type = "acp", command = ["{sys.executable}", "-S", "{acp_agent_path.PATH}", "load"] }}

[[agents.list]]
id = "helper"
runtime = {{ type = "attached" }}
"""


@pytest.fixture(scope="session")
def acting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    made = Daemon(tmp_path_factory.mktemp("acting")).start(CONFIG)
    yield made
    assert made.process is not None
    made.kill()


@pytest.fixture(scope="session")
def editors(acting: Daemon) -> Iterator[tuple[SdkEditor, SdkEditor]]:
    with SdkEditor(acting) as first, SdkEditor(acting) as second:
        yield first, second
