"""A question of a program in a terminal is told under the name of its own session, by a daemon put together whole."""

from __future__ import annotations

from pathlib import Path

from support.foreign_daemon import CONFIG, daemon
from support.hooked import KEY, claude_file, send_ask
from support.notified import NotifiedServer
from support.questions import wait_for_question

from sessiond.tasks import run_in_thread


async def test_a_permission_in_a_terminal_is_told_by_the_name_of_its_folder(tmp_path: Path) -> None:
    claude_file(tmp_path)
    with NotifiedServer() as server:
        rules = f'[[notify]]\nurl = "{server.url}"\nagents = ["claude"]\n'
        async with daemon(tmp_path, CONFIG + rules) as (parts, owner), parts.connect() as hook:
            asking = await send_ask(hook, tmp_path)
            question = await wait_for_question(owner, sessionKey=KEY)
            [arrival] = await run_in_thread(server.wait_for, 1)
            told = arrival.fields
            assert told.pop("at") == question["askedAt"]
            assert told == {
                "id": question["id"],
                "when": "waiting",
                "title": "claude in me needs you",
                "text": "Bash: ls",
                "sessionKey": KEY,
                "agentId": "claude",
                "questionId": question["id"],
            }
            await owner.call("questions.answer", id=question["id"], optionId="allow")
            assert (await hook.answer(asking))["result"]["optionId"] == "allow"
