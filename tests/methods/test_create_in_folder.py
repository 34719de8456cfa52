"""`sessions.create {cwd}`: the runs of a session work in the folder that it was made for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.in_process import Connection, in_process_daemon
from support.patience import PATIENCE_S

KEY = "agent:main:acp:0b6b1d1e"
WHERE = '[[agents.list]]\nid = "main"\nruntime = { type = "exec", command = ["sh", "-c", "pwd -P"] }\n'


async def place_of_run(owner: Connection, key: str = KEY) -> Any:
    sent = await owner.call("chat.send", sessionKey=key, message="where?")
    return (await owner.call("agent.wait", runId=sent["runId"], timeoutMs=PATIENCE_S * 1000))["reply"]


async def test_a_session_works_in_the_folder_that_it_was_made_for_also_after_a_reset_and_a_restart(
    tmp_path: Path,
) -> None:
    folder = (tmp_path / "project").resolve()
    folder.mkdir()
    async with in_process_daemon(tmp_path, WHERE) as parts, parts.connect() as owner:
        made = await owner.call("sessions.create", key=KEY, label="here", cwd=f"{folder}/")
        assert made["created"] is True
        assert await place_of_run(owner) == str(folder)
        # A session that is there keeps its folder.
        assert (await owner.call("sessions.create", key=KEY, cwd="/"))["created"] is False
        await owner.call("sessions.reset", key=KEY)
        assert await place_of_run(owner) == str(folder)
        await owner.call("sessions.create", key="agent:main:other")
        assert await place_of_run(owner, "agent:main:other") != str(folder)
    async with in_process_daemon(tmp_path, WHERE) as parts, parts.connect() as owner:
        assert await place_of_run(owner) == str(folder)
        rows = (await owner.call("sessions_list", cwd=str(folder)))["sessions"]
        assert [(row["key"], row["label"], row["cwd"]) for row in rows] == [(KEY, "here", str(folder))]


async def test_a_folder_in_which_the_agent_cannot_work_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    config = WHERE + '[agents.list.sandbox]\nmode = "all"\n'
    async with in_process_daemon(tmp_path, config) as parts, parts.connect() as owner:
        wrong: list[tuple[str, tuple[int, str | None]]] = [
            ("project", (-32602, None)),
            (str(tmp_path / "missing"), (-32602, "cwd_missing")),
            (str(tmp_path / "config.toml"), (-32602, "cwd_missing")),
            (str(tmp_path), (-32003, "sandboxed")),
        ]
        for cwd, wanted in wrong:
            error = await owner.failure("sessions.create", key=KEY, cwd=cwd)
            assert (error["code"], error["data"].get("code")) == wanted
        assert KEY not in parts.services.store.catalog.by_key
        workspace = parts.services.workspace("main") / "part"
        workspace.mkdir(parents=True)
        assert (await owner.call("sessions.create", key=KEY, cwd=str(workspace)))["created"] is True
