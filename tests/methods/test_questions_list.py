"""`questions.list`: which questions a caller sees, and how much of them."""

from __future__ import annotations

from pathlib import Path

from support.in_process import in_process_daemon
from support.in_process_agents import agent, attached_agents_config
from support.questions import ask_once, wait_for_question

SEES_ALL = '[tools.sessions]\nvisibility = "all"\n[tools.agentToAgent]\nenabled = true\nallow = ["*"]\n'


async def test_filters_and_what_each_caller_may_read(tmp_path: Path) -> None:
    async with (
        in_process_daemon(tmp_path, attached_agents_config("alice", "bob", more=SEES_ALL)) as there,
        agent(there, "alice", ask_once),
        agent(there, "bob", ask_once),
        there.connect() as owner,
    ):
        first = await owner.call("chat.send", sessionKey="agent:alice:main", message="go")
        one = await wait_for_question(owner)
        await owner.call("chat.send", sessionKey="agent:bob:main", message="go")
        other = await wait_for_question(owner, agentId="bob")

        async def listed(**wanted: object) -> list[str]:
            return [found["id"] for found in (await owner.call("questions.list", **wanted))["questions"]]

        assert one["runId"] == first["runId"]
        assert await listed() == await listed(open=True) == [one["id"], other["id"]]
        assert await listed(open=False) == []
        assert await listed(sessionKey="agent:bob:main") == await listed(agentId="bob") == [other["id"]]
        assert (await owner.failure("questions.list", sessionKey="agent:none:main"))["code"] == -32002
        await owner.call("questions.answer", id=one["id"], optionId="no", note="token=abcdef123456789")
        assert await listed(open=True) == [other["id"]]
        assert await listed(open=False) == [one["id"]]

        for scopes, reads in ((["list"], False), (["list", "read"], True), (["list", "answer"], True)):
            minted = await owner.call("tokens.mint", scopes=scopes, sessionKey="agent:bob:main")
            async with there.connect(there.services.tokens.caller(minted["token"])) as client:
                closed, still_open = (await client.call("questions.list"))["questions"]
                assert (closed["id"], still_open["id"]) == (one["id"], other["id"])
                assert ("title" in closed, bool(closed["options"]), "detail" in still_open) == (reads,) * 3
                assert "abcdef123456789" not in str(closed)
                assert ("note" in closed["answer"]) is reads
