"""The built-in echo agent, for trials: its reply is the message that it got."""

from __future__ import annotations

import trio

from sessiond.runtimes.runtime import RunOutcome, RunSink, RunSpec


class EchoRuntime:
    """Replies with the message alone, without the context. Source: runs.md, "echo"."""

    async def run(self, spec: RunSpec, sink: RunSink) -> RunOutcome:
        """The message as the reply; empty for an empty message."""
        await trio.lowlevel.checkpoint()
        if spec.message:
            sink.delta(spec.message)
        return RunOutcome(reply=spec.message)
