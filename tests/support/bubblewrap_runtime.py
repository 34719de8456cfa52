"""A runtime that runs programs in a real bubblewrap. The store that they see is a fixture of tests/runtimes."""

from __future__ import annotations

import os
from pathlib import Path

from sessiond.config.settings import RuntimeConfig, SandboxConfig
from sessiond.runtimes.exec import ExecRuntime
from sessiond.runtimes.sandbox import Bubblewrap

UUID = "33333333-3333-4333-8333-333333333333"
OTHER = "44444444-4444-4444-8444-444444444444"
RELATIVE = f".openclaw/attachments/{UUID}"


def runtime(*command: str, store: Path, config: SandboxConfig | None = None, **env: str) -> ExecRuntime:
    return ExecRuntime(
        RuntimeConfig(type="exec", command=command, env=env),
        environ={"PATH": os.environ["PATH"], "HOME": str(Path.home()), "XDG_STATE_HOME": str(store)},
        max_record_bytes=8 << 20,
        bubblewrap=Bubblewrap(private=(store, store / "run")),
        sandbox_config=config or SandboxConfig(network=False),
    )
