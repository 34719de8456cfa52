"""The codes of the owner's page and the tokens that it gets for them, on a clock of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from support.in_process import InProcessDaemon, in_process_daemon
from support.rows import check_each

from sessiond.clock import Clock
from sessiond.errors import Unauthenticated
from sessiond.sessions.page_access import CODE_S, PageAccess

CONFIG = '[store]\ndurability = "os"\n'
READS = frozenset(["list", "read"])


class Hands:
    """The hands of a clock, which the test moves."""

    def __init__(self) -> None:
        self.s = 1000.0

    def monotonic(self) -> float:
        return self.s


@asynccontextmanager
async def page_of(folder: Path) -> AsyncIterator[tuple[InProcessDaemon, PageAccess, Hands]]:
    hands = Hands()
    async with in_process_daemon(folder, CONFIG, clock=Clock(monotonic=hands.monotonic)) as parts:
        yield parts, parts.services.page, hands


async def test_a_code_is_traded_once_for_a_token_that_sees_all_and_does_what_was_asked_for(tmp_path: Path) -> None:
    async with page_of(tmp_path) as (parts, page, _):
        code = page.issue_code(READS, 60)
        text, claims = await page.trade(code)
        caller = parts.services.tokens.caller(text)
        assert (caller.kind, caller.scopes, caller.is_page, caller.session_key) == ("token", READS, True, None)
        assert claims.expires_at_ms - claims.issued_at_ms == 60_000
        assert parts.services.sight_of(caller).unlimited and parts.services.sight_of(caller, "send").unlimited
        [row] = parts.services.tokens.rows()
        assert (row.id, row.page, row.revoked) == (claims.id, True, False)
        with pytest.raises(Unauthenticated, match="sessiond web"):
            await page.trade(code)


async def test_of_two_trades_of_one_code_at_once_one_gets_a_token(tmp_path: Path) -> None:
    async with page_of(tmp_path) as (parts, page, _):
        code, refused = page.issue_code(READS, 60), 0

        async def trade() -> None:
            nonlocal refused
            try:
                await page.trade(code)
            except Unauthenticated:
                refused += 1

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(trade)
        assert (refused, len(parts.services.tokens.rows())) == (3, 1)


@check_each(("waited_s", "is_valid"), [(0, True), (CODE_S - 0.001, True), (CODE_S, False), (CODE_S + 60, False)])
async def test_a_code_lasts_thirty_seconds(tmp_path: Path, waited_s: float, is_valid: bool) -> None:
    async with page_of(tmp_path) as (parts, page, hands):
        code = page.issue_code(READS, 60)
        hands.s += waited_s
        if is_valid:
            await page.trade(code)
        else:
            with pytest.raises(Unauthenticated):
                await page.trade(code)
        assert len(parts.services.tokens.rows()) == is_valid


async def test_sixteen_codes_are_kept_and_the_oldest_goes_first(tmp_path: Path) -> None:
    async with page_of(tmp_path) as (_, page, _):
        codes = [page.issue_code(READS, 60) for _ in range(17)]
        with pytest.raises(Unauthenticated):
            await page.trade(codes[0])
        for code in codes[1:]:
            await page.trade(code)


@check_each("guess", ["", "x", "é", "\ud800", "0" * 4096])
async def test_no_other_text_is_a_code(tmp_path: Path, guess: str) -> None:
    async with page_of(tmp_path) as (_, page, _):
        page.issue_code(READS, 60)
        with pytest.raises(Unauthenticated):
            await page.trade(guess)


async def test_closing_revokes_the_tokens_of_all_pages_and_no_others_and_drops_all_codes(tmp_path: Path) -> None:
    async with page_of(tmp_path) as (parts, page, _), parts.connect() as owner:
        other = await owner.call("tokens.mint", scopes=["list"])
        first, _ = await page.trade(page.issue_code(READS, 60))
        await page.trade(page.issue_code(frozenset(["admin"]), 60))
        pending = page.issue_code(READS, 60)
        assert await page.close() == 2
        assert await page.close() == 0
        assert [row.id for row in parts.services.tokens.rows() if not row.revoked] == [other["id"]]
        for attempt in (lambda: page.trade(pending), lambda: _use(parts, first)):
            with pytest.raises(Unauthenticated):
                await attempt()
    # The claim is in the token and in the log: both are read back after a restart.
    async with page_of(tmp_path) as (parts, _, _):
        assert [row.page for row in parts.services.tokens.rows()] == [True, True, False]


async def _use(parts: InProcessDaemon, text: str) -> None:
    parts.services.tokens.caller(text)


async def test_a_page_with_every_scope_mints_tokens_that_end_with_it(tmp_path: Path) -> None:
    async with page_of(tmp_path) as (parts, page, _):
        text, claims = await page.trade(page.issue_code(frozenset(["admin"]), 60))
        async with parts.connect(parts.services.tokens.caller(text)) as there:
            minted = await there.call("tokens.mint", scopes=["list"], ttlSeconds=3600)
            assert minted["expiresAt"] <= claims.expires_at_ms
            await page.close()
            with pytest.raises(Unauthenticated):
                parts.services.tokens.caller(minted["token"])
