"""Who may answer whose questions: the reference of visibility, ten lines on kin, and the methods agree with both."""

from __future__ import annotations

import trio
from hypothesis import HealthCheck, example, given, settings
from support.sampling import amount
from support.visibility_world import FORBIDDEN, NOT_FOUND, World, WorldCaller, built_world, outcome, worlds

from sessiond.model.question import QuestionDraft, QuestionOption

DRAFT = QuestionDraft(title="May I?", options=(QuestionOption("yes", "Yes", "allow_once"),))
NO_SUCH_OPTION = -32602


def is_kin(world: World, who: WorldCaller, place: int) -> bool:
    """The reference."""
    own = world.own_key(who)
    if who.unlimited or own is None:
        return False
    spawners = [world.keys[above] for above in world.line(place)]
    mine = [world.keys[above] for above in world.line(world.keys.index(own))] if own in world.keys else [own]
    return own in spawners or world.keys[place] in mine or own.split(":")[1] == world.sessions[place][0]


CROSSED = World(
    sessions=(("main", None), ("other", 0), ("third", 1), ("third", None), ("main", 3)),
    callers=(
        *(WorldCaller(place=place) for place in range(5)),
        *(WorldCaller(owner=True), WorldCaller(admin=True), WorldCaller(admin=True, sandboxed=True), WorldCaller()),
    ),
    visibility="all",
    send_visibility="self",
    agent_to_agent=True,
    allow=("*",),
    clamp=True,
)


@given(world=worlds())
@example(world=CROSSED)
@settings(max_examples=amount(40, 2), suppress_health_check=list(HealthCheck), deadline=None)
async def test_the_methods_agree_on_who_sees_and_who_answers(world: World) -> None:
    async with built_world(world) as built, trio.open_nursery() as nursery:
        services = built.parts.services
        for key in world.keys:
            nursery.start_soon(services.questions.ask, services.store.catalog.by_key[key], DRAFT)
        while len(services.questions.open_questions()) < len(world.keys):  # noqa: ASYNC110
            await trio.sleep(0.001)
        ids = {asked.key: asked.question.id for asked in services.questions.open_questions()}
        for who in world.callers:
            named = {"sessionKey": world.own_key(who)} if who.place is not None else {}
            named |= {"agentId": who.agent} if who.agent is not None else {}
            scopes = ["list", "answer", *(["admin"] if who.admin else [])]
            caller = await built.caller(who)
            if not who.owner:
                minted = await built.owner.call("tokens.mint", scopes=scopes, sandboxed=who.sandboxed, **named)
                caller = services.tokens.caller(minted["token"])
            async with built.parts.connect(caller) as connection:
                listed = (await connection.call("questions.list", open=True))["questions"]
                seen = {key for place, key in enumerate(world.keys) if world.sees(who, place)}
                assert {one["sessionKey"] for one in listed} == seen, who
                for place, key in enumerate(world.keys):
                    # An option that there is not: whoever may answer is told so, and the question stays open.
                    got = await outcome(connection, "questions.answer", id=ids[key], optionId="none")
                    allowed = FORBIDDEN if is_kin(world, who, place) else NO_SUCH_OPTION
                    assert got == (allowed if world.sees(who, place) else NOT_FOUND), (who, key)
        nursery.cancel_scope.cancel()
