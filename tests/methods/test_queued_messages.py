"""`chat.history` says which messages wait for their turn, and no longer says so once they are in the transcript."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio
from support.in_process import in_process_daemon
from support.in_process_agents import Program, agent, attached_agents_config

from sessiond.model.caller import Caller
from sessiond.store.time_slicer import TimeSlicer
from sessiond.tasks import run_in_thread

KEY = "agent:alice:main"
SECRET = "sk-ant-api03-" + "a" * 24


class CountedSlices:
    """Runs what is for a worker thread, and counts it."""

    count = 0

    async def run_sync(self, function: Callable[..., Any], *args: Any) -> Any:
        self.count += 1
        return await run_in_thread(function, *args)


async def test_messages_that_wait_are_told_until_they_are_in_the_transcript(tmp_path: Path) -> None:
    begun, turn = trio.Event(), trio.Event()

    async def act(_program: Program, params: dict[str, Any]) -> Any:
        begun.set()
        await turn.wait()
        return {"reply": f"to {params['message']}"}

    async with (
        in_process_daemon(tmp_path, attached_agents_config("alice")) as parts,
        agent(parts, "alice", act),
        parts.connect() as owner,
    ):

        async def page(**params: Any) -> dict[str, Any]:
            found: dict[str, Any] = await owner.call("chat.history", sessionKey=KEY, **params)
            return found

        first = await owner.call("chat.send", sessionKey=KEY, message="first")
        await begun.wait()
        assert "queued" not in await page(includeRuns=True)
        second = await owner.call("chat.send", sessionKey=KEY, message=f"second {SECRET}")
        third = await owner.call("chat.send", sessionKey=KEY, message="third " + "x" * 2000)
        now = await page(includeRuns=True, limit=1)
        assert [(one["runId"], one["message"]["role"]) for one in now["queued"]] == [
            (second["runId"], "user"),
            (third["runId"], "user"),
        ]
        assert now["currentRun"] == first["runId"]
        # Only where runs are asked for, and only on the newest page, of whose size they are a part.
        assert "currentRun" not in {**await page(), **await page(includeRuns=True, cursor=now["cursor"])}
        assert "queued" not in await page()
        assert "queued" not in await page(includeRuns=True, cursor=now["cursor"])
        (_, large) = (await page(includeRuns=True, maxBytes=1024))["queued"]
        assert large["message"]["omitted"]["bytes"] > 2000
        # They may be long, so they are not made into JSON on the event loop.
        slices = CountedSlices()
        parts.services.masking = TimeSlicer(slices.run_sync)
        assert (await page(includeRuns=True, limit=1))["queued"] == now["queued"]
        assert slices.count == 1
        assert "queued" not in await page()
        assert slices.count == 1
        reader = Caller(kind="token", session_key=KEY, agent_id="alice", scopes=frozenset({"read"}))
        async with parts.connect(reader) as other:
            masked = (await other.call("chat.history", sessionKey=KEY, includeRuns=True))["queued"]
        assert SECRET in str(now["queued"]) and SECRET not in str(masked)
        stopped = await owner.call("chat.abort", sessionKey=KEY, runId=third["runId"])
        assert stopped["runIds"] == [third["runId"]]
        assert [one["runId"] for one in (await page(includeRuns=True))["queued"]] == [second["runId"]]
        turn.set()
        await owner.call("agent.wait", runId=second["runId"])
        after = await page(includeRuns=True)
        assert not {"queued", "currentRun"} & after.keys()
        assert now["queued"][0]["message"] in after["messages"]
