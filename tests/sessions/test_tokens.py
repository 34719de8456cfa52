"""The store's tokens on a disk that is full, and their log over many lives."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from support.in_process import Inside, inside
from support.in_process_agents import Program, agent, attached, until
from support.patience import PATIENCE_S

from sessiond.errors import Unauthenticated
from sessiond.sessions.tokens import Tokens
from sessiond.store.layout import TOKENS

CONFIG = '[store]\ndurability = "os"\n'
STORAGE = -32009


@contextmanager
def full_disk(file: Path, spare: int = 0) -> Iterator[None]:
    """No file of this process grows beyond the size that `file` has now, and `spare` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = file.stat().st_size if file.exists() else 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + spare, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def counts(parts: Inside, text: str) -> bool:
    tokens: Tokens = parts.services.tokens
    try:
        tokens.caller(text)
    except Unauthenticated:
        return False
    return True


@pytest.mark.parametrize("spare", [0, 1, 40])
async def test_a_revoked_token_counts_no_more_after_a_restart_where_the_disk_was_full_at_first(
    tmp_path: Path, spare: int
) -> None:
    file = tmp_path / "store" / TOKENS
    async with inside(tmp_path, CONFIG) as parts, parts.connect() as owner:
        minted = await owner.call("tokens.mint", scopes=["list"])
        written = file.read_bytes()
        with full_disk(file, spare):
            failed = await owner.failure("tokens.revoke", id=minted["id"])
            assert (failed["code"], "nothing was changed" in failed["message"]) == (STORAGE, True)
            failed = await owner.failure("tokens.mint", scopes=["list"])
            assert failed["code"] == STORAGE
        assert file.read_bytes() == written
        # What the answer said: nothing was changed.
        assert counts(parts, minted["token"])
        assert [row["revoked"] for row in (await owner.call("tokens.list"))["tokens"]] == [False]
        assert await owner.call("tokens.revoke", id=minted["id"]) == {"revoked": True}
        assert not counts(parts, minted["token"])
    async with inside(tmp_path, CONFIG) as parts:
        assert not counts(parts, minted["token"])


async def test_the_log_does_not_grow_with_tokens_that_are_over(tmp_path: Path) -> None:
    file = tmp_path / "store" / TOKENS
    async with inside(tmp_path, CONFIG) as parts, parts.connect() as owner:
        lasting = [await owner.call("tokens.mint", scopes=["list"]) for _ in range(3)]
        await owner.call("tokens.revoke", id=lasting[0]["id"])
    one = file.stat().st_size // 4
    # Tokens of a year ago: minted, never revoked, expired.
    over = file.read_bytes().splitlines(keepends=True)[1]
    stamp = str(lasting[1]["expiresAt"]).encode()
    assert stamp in over
    gone = [over.replace(lasting[1]["id"].encode(), b"%032x" % n).replace(stamp, b"1000") for n in range(5000)]
    with file.open("ab") as log:
        log.writelines(gone)
    async with inside(tmp_path, CONFIG) as parts, parts.connect() as owner:
        await owner.call("tokens.mint", scopes=["list"])
        assert file.stat().st_size < 8 * one
        assert [row["revoked"] for row in (await owner.call("tokens.list"))["tokens"]] == [False, False, False, True]
        assert [counts(parts, minted["token"]) for minted in lasting] == [False, True, True]
    async with inside(tmp_path, CONFIG) as parts:
        assert [counts(parts, minted["token"]) for minted in lasting] == [False, True, True]


async def test_no_token_counts_while_nobody_can_read_which_were_revoked(tmp_path: Path) -> None:
    async with inside(tmp_path, CONFIG) as parts, parts.connect() as owner:
        minted = await owner.call("tokens.mint", scopes=["list"])
    file = tmp_path / "store" / TOKENS
    file.rename(tmp_path / "kept")
    file.mkdir()
    hello = {"protocol": 1, "client": {"name": "t", "version": "1"}, "token": minted["token"]}
    async with inside(tmp_path, CONFIG) as parts, parts.connect() as owner, parts.connect() as other:
        assert (await other.failure("initialize", **hello))["code"] == STORAGE
        assert (await owner.failure("tokens.list"))["code"] == STORAGE


async def test_a_revoke_that_is_being_written_when_its_caller_goes_counts(tmp_path: Path) -> None:
    async with inside(tmp_path, CONFIG) as parts, parts.connect() as owner:
        minted = await owner.call("tokens.mint", scopes=["list"])
        run_sync = parts.services.store.run_sync
        written, told, leaving = trio.Event(), trio.Event(), trio.CancelScope()

        async def slow(function: Any, *args: Any) -> Any:
            result = await run_sync(function, *args)
            written.set()
            await told.wait()
            return result

        async def revoke() -> None:
            with leaving:
                await parts.services.tokens.revoke(token_id=minted["id"], text=None)

        parts.services.store.run_sync = slow
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(revoke)
                await written.wait()
                leaving.cancel()
                told.set()
        assert not counts(parts, minted["token"])


async def test_a_token_minted_by_a_token_dies_with_it_and_so_does_what_its_holder_follows(tmp_path: Path) -> None:
    async with inside(tmp_path) as there, there.connect() as owner:
        await owner.call("sessions.create", key="agent:main:a")
        asked = {"scopes": ["admin"], "sessionKey": "agent:main:a"}
        first = await owner.call("tokens.mint", **asked)
        async with there.connect(there.services.tokens.caller(first["token"])) as holder:
            second = await holder.call("tokens.mint", **asked)
        async with there.connect(there.services.tokens.caller(second["token"])) as holder:
            third = await holder.call("tokens.mint", **asked)
        other = await owner.call("tokens.mint", **asked)
        told: list[bool] = []
        callers = [there.services.tokens.caller(one["token"]) for one in (first, second, third, other)]
        there.services.tokens.on_dead = lambda is_dead: told.extend(is_dead(caller) for caller in callers)
        assert await owner.call("tokens.revoke", id=first["id"]) == {"revoked": True}
        assert told == [True, True, True, False]
        assert [counts(there, one["token"]) for one in (first, second, third, other)] == [False, False, False, True]
        rows = {row["id"]: row["revoked"] for row in (await owner.call("tokens.list"))["tokens"]}
        assert [rows[one["id"]] for one in (first, second, third, other)] == [True, True, True, False]
    async with inside(tmp_path) as there:
        assert [counts(there, one["token"]) for one in (first, second, third, other)] == [False, False, False, True]


@pytest.mark.parametrize("key", ["agent:coder:a", "agent:coder:below"])
async def test_what_a_run_mints_ends_with_the_run_and_so_does_what_is_minted_with_that(
    tmp_path: Path, key: str
) -> None:
    async def wait(program: Program, _params: dict[str, Any]) -> Any:
        await program.gate.wait()
        return {"reply": "done"}

    async with (
        inside(tmp_path, attached("coder", more=CONFIG)) as there,
        there.connect() as owner,
        agent(there, "coder", wait) as living,
    ):
        tokens = there.services.tokens
        await owner.call("sessions.create", key="agent:coder:a")
        await owner.call("sessions.create", key="agent:coder:below", parentSessionKey="agent:coder:a")
        run_id = (await owner.call("chat.send", sessionKey="agent:coder:a", message="x"))["runId"]
        of_run = tokens.mint_for_run(
            run_id=run_id, session_key="agent:coder:a", scopes=frozenset({"admin"}), sandboxed=False
        )
        asked = {"scopes": ["admin"], "sessionKey": key, "ttlSeconds": 10**6}
        async with there.connect(tokens.caller(of_run)) as holder:
            first = await holder.call("tokens.mint", **asked)
        async with there.connect(tokens.caller(first["token"])) as holder:
            second = await holder.call("tokens.mint", **asked)
        other = await owner.call("tokens.mint", **asked)
        minted = [first, second, other]
        callers = [tokens.caller(one["token"]) for one in minted]
        assert [caller.run_id for caller in callers] == [run_id, run_id, None]
        told: list[bool] = []
        tokens.on_dead = lambda is_dead: told.extend(is_dead(caller) for caller in callers)
        living.gate.set()
        await owner.call("agent.wait", runId=run_id)
        await until(lambda: told)
        assert told == [True, True, False]
        assert [counts(there, one["token"]) for one in minted] == [False, False, True]
        rows = {row["id"]: row["revoked"] for row in (await owner.call("tokens.list"))["tokens"]}
        assert [rows[one["id"]] for one in minted] == [True, True, False]
    async with inside(tmp_path, attached("coder", more=CONFIG)) as there:
        assert [counts(there, one["token"]) for one in minted] == [False, False, True]
