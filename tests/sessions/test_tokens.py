"""The store's tokens: on a full disk, over restarts, and with everything that was minted from them."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from support.in_process import InProcessDaemon, in_process_daemon
from support.in_process_agents import Program, agent, attached_agents_config, until
from support.patience import PATIENCE_S
from support.rows import check_each

from sessiond.errors import Unauthenticated
from sessiond.sessions import tokens as tokens_module
from sessiond.sessions.tokens import Tokens
from sessiond.store import layout
from sessiond.store.layout import MAX_TOKENS_BYTES, TOKENS

CONFIG = '[store]\ndurability = "os"\n'
STORAGE = -32009


@contextmanager
def full_disk(file: Path, spare: int = 0) -> Iterator[None]:
    """No file of this process can grow beyond the present size of `file` plus `spare` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = file.stat().st_size if file.exists() else 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + spare, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def is_valid(parts: InProcessDaemon, text: str) -> bool:
    tokens: Tokens = parts.services.tokens
    try:
        tokens.caller(text)
    except Unauthenticated:
        return False
    return True


@check_each("spare", [0, 1, 40])
async def test_a_token_whose_revocation_was_repeated_after_a_full_disk_stays_revoked(
    tmp_path: Path, spare: int
) -> None:
    file = tmp_path / "store" / TOKENS
    async with in_process_daemon(tmp_path, CONFIG) as parts, parts.connect() as owner:
        minted = await owner.call("tokens.mint", scopes=["list"])
        written = file.read_bytes()
        with full_disk(file, spare):
            failed = await owner.failure("tokens.revoke", id=minted["id"])
            assert (failed["code"], "nothing was changed" in failed["message"]) == (STORAGE, True)
            failed = await owner.failure("tokens.mint", scopes=["list"])
            assert failed["code"] == STORAGE
        assert file.read_bytes() == written
        # As the error said, nothing was changed.
        assert is_valid(parts, minted["token"])
        assert [row["revoked"] for row in (await owner.call("tokens.list"))["tokens"]] == [False]
        assert await owner.call("tokens.revoke", id=minted["id"]) == {"revoked": True}
        assert not is_valid(parts, minted["token"])
    async with in_process_daemon(tmp_path, CONFIG) as parts:
        assert not is_valid(parts, minted["token"])


async def test_expired_tokens_are_compacted_out_of_the_log(tmp_path: Path) -> None:
    file = tmp_path / "store" / TOKENS
    async with in_process_daemon(tmp_path, CONFIG) as parts, parts.connect() as owner:
        unexpired = [await owner.call("tokens.mint", scopes=["list"]) for _ in range(3)]
        await owner.call("tokens.revoke", id=unexpired[0]["id"])
    one = file.stat().st_size // 4
    # Tokens of a year ago: minted, never revoked, expired.
    over = file.read_bytes().splitlines(keepends=True)[1]
    stamp = str(unexpired[1]["expiresAt"]).encode()
    assert stamp in over
    gone = [over.replace(unexpired[1]["id"].encode(), b"%032x" % n).replace(stamp, b"1000") for n in range(5000)]
    with file.open("ab") as log:
        log.writelines(gone)
    async with in_process_daemon(tmp_path, CONFIG) as parts, parts.connect() as owner:
        await owner.call("tokens.mint", scopes=["list"])
        assert file.stat().st_size < 8 * one
        assert [row["revoked"] for row in (await owner.call("tokens.list"))["tokens"]] == [False, False, False, True]
        assert [is_valid(parts, minted["token"]) for minted in unexpired] == [False, True, True]
    async with in_process_daemon(tmp_path, CONFIG) as parts:
        assert [is_valid(parts, minted["token"]) for minted in unexpired] == [False, True, True]


@check_each("size", [MAX_TOKENS_BYTES, MAX_TOKENS_BYTES + 1])
async def test_a_long_log_is_read_before_the_first_token_and_one_that_is_too_long_not_at_all(
    tmp_path: Path, size: int
) -> None:
    async with in_process_daemon(tmp_path, CONFIG) as parts, parts.connect() as owner:
        minted = await owner.call("tokens.mint", scopes=["list"])
    with (tmp_path / "store" / TOKENS).open("ab") as log:
        log.truncate(size)
    async with in_process_daemon(tmp_path, CONFIG) as parts, parts.connect() as owner:
        if size <= MAX_TOKENS_BYTES:
            assert parts.services.tokens._loaded is not None
            assert is_valid(parts, minted["token"])
        else:
            failed = await owner.failure("tokens.mint", scopes=["list"])
            assert (failed["code"], str(MAX_TOKENS_BYTES) in failed["message"]) == (STORAGE, True)
        [found] = [one for one in (await owner.call("daemon.doctor"))["findings"] if one["thing"] == TOKENS]
        assert found["level"] == ("warn" if size <= MAX_TOKENS_BYTES else "error")


async def test_what_is_revoked_while_a_long_log_is_being_read_stays_revoked(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path, CONFIG) as parts, parts.connect() as owner:
        minted = await owner.call("tokens.mint", scopes=["list"])
        over = b'{"type":"revoked","id":"%b","at":1}\n' % (b"0" * 32)
        with (tmp_path / "store" / TOKENS).open("ab") as log:
            log.write(over * 10_000)
        tokens: Tokens = parts.services.tokens
        tokens._loaded = None
        is_read, may_return = trio.Event(), trio.Event()
        run_sync = tokens._store.run_sync

        async def run_slowly(function: Callable[..., object], *args: object) -> object:
            result = await run_sync(function, *args)
            is_read.set()
            await may_return.wait()
            return result

        async with trio.open_nursery() as nursery:
            tokens._store.run_sync = run_slowly
            nursery.start_soon(tokens.load_long_log)
            await is_read.wait()
            tokens._store.run_sync = run_sync
            assert await tokens.revoke(token_id=minted["id"], text=None)
            may_return.set()
        assert not is_valid(parts, minted["token"])


async def test_tokens_are_minted_as_long_as_each_can_be_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "MAX_TOKENS_BYTES", 4096)
    monkeypatch.setattr(tokens_module, "_ROOM_FOR_REVOCATIONS", 2048)
    minted = []
    async with in_process_daemon(tmp_path, CONFIG) as parts, parts.connect() as owner:
        while True:
            answer = await owner.answer(await owner.send("tokens.mint", scopes=["list"]))
            if "error" in answer:
                break
            minted.append(answer["result"])
        assert "have not expired" in answer["error"]["message"]
        assert len(minted) > 5
        for one in minted:
            assert await owner.call("tokens.revoke", id=one["id"]) == {"revoked": True}
    async with in_process_daemon(tmp_path, CONFIG) as parts:
        assert not any(is_valid(parts, one["token"]) for one in minted)


async def test_no_token_is_accepted_while_the_revocations_cannot_be_read(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path, CONFIG) as parts, parts.connect() as owner:
        minted = await owner.call("tokens.mint", scopes=["list"])
    file = tmp_path / "store" / TOKENS
    file.rename(tmp_path / "kept")
    file.mkdir()
    hello = {"protocol": 1, "client": {"name": "t", "version": "1"}, "token": minted["token"]}
    async with in_process_daemon(tmp_path, CONFIG) as parts, parts.connect() as owner, parts.connect() as other:
        assert (await other.failure("initialize", **hello))["code"] == STORAGE
        assert (await owner.failure("tokens.list"))["code"] == STORAGE


async def test_a_revocation_is_completed_even_if_its_caller_is_cancelled(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path, CONFIG) as parts, parts.connect() as owner:
        minted = await owner.call("tokens.mint", scopes=["list"])
        run_sync = parts.services.store.run_sync
        written, release, leaving = trio.Event(), trio.Event(), trio.CancelScope()

        async def finish_late(function: Any, *args: Any) -> Any:
            result = await run_sync(function, *args)
            written.set()
            await release.wait()
            return result

        async def revoke() -> None:
            with leaving:
                await parts.services.tokens.revoke(token_id=minted["id"], text=None)

        parts.services.store.run_sync = finish_late
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(revoke)
                await written.wait()
                leaving.cancel()
                release.set()
        assert not is_valid(parts, minted["token"])


async def test_revoking_a_token_also_revokes_all_tokens_minted_from_it(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as there, there.connect() as owner:
        await owner.call("sessions.create", key="agent:main:a")
        asked = {"scopes": ["admin"], "sessionKey": "agent:main:a"}
        first = await owner.call("tokens.mint", **asked)
        async with there.connect(there.services.tokens.caller(first["token"])) as holder:
            second = await holder.call("tokens.mint", **asked)
        async with there.connect(there.services.tokens.caller(second["token"])) as holder:
            third = await holder.call("tokens.mint", **asked)
        other = await owner.call("tokens.mint", **asked)
        dead: list[bool] = []
        callers = [there.services.tokens.caller(one["token"]) for one in (first, second, third, other)]
        there.services.tokens.on_dead = lambda is_dead: dead.extend(is_dead(caller) for caller in callers)
        assert await owner.call("tokens.revoke", id=first["id"]) == {"revoked": True}
        assert dead == [True, True, True, False]
        assert [is_valid(there, one["token"]) for one in (first, second, third, other)] == [False, False, False, True]
        rows = {row["id"]: row["revoked"] for row in (await owner.call("tokens.list"))["tokens"]}
        assert [rows[one["id"]] for one in (first, second, third, other)] == [True, True, True, False]
    async with in_process_daemon(tmp_path) as there:
        assert [is_valid(there, one["token"]) for one in (first, second, third, other)] == [False, False, False, True]


@pytest.mark.parametrize("key", ["agent:coder:a", "agent:coder:below"])
async def test_tokens_minted_by_a_run_and_from_those_are_revoked_when_the_run_ends(tmp_path: Path, key: str) -> None:
    async def wait(program: Program, _params: dict[str, Any]) -> Any:
        await program.gate.wait()
        return {"reply": "done"}

    async with (
        in_process_daemon(tmp_path, attached_agents_config("coder", more=CONFIG)) as there,
        there.connect() as owner,
        agent(there, "coder", wait) as living,
    ):
        tokens = there.services.tokens
        await owner.call("sessions.create", key="agent:coder:a")
        await owner.call("sessions.create", key="agent:coder:below", parentSessionKey="agent:coder:a")
        run_id = (await owner.call("chat.send", sessionKey="agent:coder:a", message="x"))["runId"]
        run_token = tokens.mint_for_run(
            run_id=run_id, session_key="agent:coder:a", scopes=frozenset({"admin"}), sandboxed=False
        )
        asked = {"scopes": ["admin"], "sessionKey": key, "ttlSeconds": 10**6}
        async with there.connect(tokens.caller(run_token)) as holder:
            first = await holder.call("tokens.mint", **asked)
        async with there.connect(tokens.caller(first["token"])) as holder:
            second = await holder.call("tokens.mint", **asked)
        other = await owner.call("tokens.mint", **asked)
        minted = [first, second, other]
        callers = [tokens.caller(one["token"]) for one in minted]
        assert [caller.run_id for caller in callers] == [run_id, run_id, None]
        dead: list[bool] = []
        tokens.on_dead = lambda is_dead: dead.extend(is_dead(caller) for caller in callers)
        living.gate.set()
        await owner.call("agent.wait", runId=run_id)
        await until(lambda: dead)
        assert dead == [True, True, False]
        assert [is_valid(there, one["token"]) for one in minted] == [False, False, True]
        rows = {row["id"]: row["revoked"] for row in (await owner.call("tokens.list"))["tokens"]}
        assert [rows[one["id"]] for one in minted] == [True, True, False]
    async with in_process_daemon(tmp_path, attached_agents_config("coder", more=CONFIG)) as there:
        assert [is_valid(there, one["token"]) for one in minted] == [False, False, True]
