"""Which caller may see which event: the filter that is asked for every event."""

from __future__ import annotations

from pathlib import Path

import msgspec
from support.in_process import in_process_daemon

from sessiond.methods.following import EventFilter
from sessiond.model.caller import OWNER, Caller
from sessiond.store.store import Custom

MINE, CHILD, OTHER = "agent:main:mine", "agent:other:subagent:x", "agent:main:other"


def token_caller(*scopes: str, **more: str) -> Caller:
    return Caller(kind="token", scopes=frozenset(scopes), session_key=MINE, token_id="t", **more)  # type: ignore[arg-type]


async def test_a_caller_gets_events_of_visible_sessions_and_messages_only_with_the_scope_read(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon:
        store = daemon.services.store
        for key, spawner in ((MINE, None), (CHILD, MINE), (OTHER, None)):
            await store.create(key, key.split(":")[1], spawned_by=spawner)
        reads, lists = (
            EventFilter(daemon.services, token_caller("read", "list")),
            EventFilter(daemon.services, token_caller("list")),
        )
        owner = EventFilter(daemon.services, OWNER)
        for key, visible in ((MINE, True), (CHILD, True), (OTHER, False)):
            assert (reads.sees(key, None, True), reads.sees(key, None, False)) == (visible, visible)
            assert (lists.sees(key, None, True), lists.sees(key, None, False)) == (False, visible)
            assert owner.sees(key, None, True)


async def test_events_of_a_deleted_session_are_filtered_by_its_spawner(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon:
        store = daemon.services.store
        await store.create(MINE, "main")
        sees = EventFilter(daemon.services, token_caller("list")).sees
        assert (sees(CHILD, MINE, False), sees(CHILD, OTHER, False), sees(CHILD, None, False)) == (True, False, False)
        # Where the session is in the catalog, its spawner there counts, not that of the event.
        await store.create(CHILD, "other", [Custom("sessiond/entry", {"label": "x"})], spawned_by=OTHER)
        assert not sees(CHILD, MINE, False)


async def test_a_changed_configuration_applies_from_the_next_event_on(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon:
        services = daemon.services
        for key in (MINE, OTHER):
            await services.store.create(key, "main")
        sees = EventFilter(services, token_caller("read")).sees
        assert not sees(OTHER, None, True)
        config = services.config
        wide = msgspec.structs.replace(config.tools.sessions, visibility="agent")
        services.config = msgspec.structs.replace(config, tools=msgspec.structs.replace(config.tools, sessions=wide))
        assert sees(OTHER, None, True)


async def test_an_expired_or_revoked_token_gets_no_events(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon:
        services = daemon.services
        await services.store.create(MINE, "main")
        expired = msgspec.structs.replace(token_caller("read"), expires_at_ms=services.clock.wall_ms())
        assert not EventFilter(services, expired).sees(MINE, None, True)
        of_a_run = msgspec.structs.replace(token_caller("read"), run_id="ended")
        assert not EventFilter(services, of_a_run).sees(MINE, None, True)
        text, claims = await services.tokens.mint(
            scopes=frozenset({"read"}), session_key=MINE, agent_id=None, sandboxed=False, ttl_seconds=60
        )
        sees = EventFilter(services, services.tokens.caller(text)).sees
        assert sees(MINE, None, True)
        await services.tokens.revoke(token_id=claims.id, text=None)
        assert not sees(MINE, None, True)
