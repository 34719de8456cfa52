"""The built-in agent for trying things out: it answers with what it got. Knows no programs and no files."""

from __future__ import annotations

import trio

from sessiond.runtimes.runtime import RunOutcome, RunSink, RunSpec


class EchoRuntime:
    """Answers the bare message, without the preamble of another session. Source: runs.md, "echo"."""

    async def run(self, spec: RunSpec, sink: RunSink) -> RunOutcome:
        """The message as the reply; empty for an empty message."""
        await trio.lowlevel.checkpoint()
        if spec.message:
            sink.delta(spec.message)
        return RunOutcome(reply=spec.message)
