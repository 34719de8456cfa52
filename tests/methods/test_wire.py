"""Events on the wire: their params, and one encoding for all clients that get the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cbor2
import msgspec
from support.in_process import in_process_daemon

from sessiond.methods.wire import Encoder, describe_event
from sessiond.model.event import ChangedEvent, LiveEvent, MessageEvent, QuestionAsked, QuestionClosed, ResyncEvent
from sessiond.model.question import Question, QuestionAnswer, QuestionOption
from sessiond.policy.visibility import Sight
from sessiond.rpc.codecs import CBOR, JSON, CodecName
from sessiond.rpc.messages import encode_call
from sessiond.sessions.listing import hidden_links

KEY = "agent:main:main"
MESSAGE = b'{"role":"assistant", "content":"secret_key=abcdef123456", "usage":{"input":1}, "own": 1.50}'


class Client:
    """The part of a client that a frame depends on. Counts the frames that are made for it."""

    def __init__(
        self, codec: CodecName = "json", agent_id: str | None = None, *, masks: bool = False, reads: bool = True
    ) -> None:
        self.codec: CodecName = codec
        self.sight = Sight(level="all", unlimited=True)
        self.agent_id, self.masks, self.reads, self.reads_questions = agent_id, masks, reads, reads
        self.made = 0

    def encode_notification(self, method: str, params: Any) -> bytes:
        self.made += 1
        codec = CBOR if self.codec == "cbor" else JSON
        return codec.from_json(encode_call(method, params))


def message_event(message: bytes = MESSAGE) -> MessageEvent:
    return MessageEvent(KEY, "s", "m1", 1, "c1", message, 0, 100, 0)


async def test_a_frame_is_encoded_once_for_all_clients_that_get_the_same_bytes(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon:
        session, _ = await daemon.services.store.create(KEY, "main")
        encoder = Encoder(daemon.services.store, daemon.services.patterns)
        one, other, binary, masked = Client(), Client(), Client("cbor"), Client(masks=True)
        event = message_event()
        frames = [encoder.frame(event, client) for client in (one, other, binary, masked, one)]
        assert [client.made for client in (one, other, binary, masked)] == [1, 0, 1, 1]
        assert frames[0] is frames[1] is frames[4]
        assert cbor2.loads(frames[2]) == json.loads(frames[0])
        assert encoder.frame(message_event(b'{"role":"user"}'), other) != frames[0]
        # The key `main` depends on the agent of the caller: so rows differ by agent, messages do not.
        changed = ChangedEvent(KEY, session.session_id, "patch", None, session.entry)
        rows = {agent: json.loads(encoder.frame(changed, Client(agent_id=agent))) for agent in (None, "main", "other")}
        assert [rows[agent]["params"]["row"]["key"] for agent in (None, "main", "other")] == ["main", "main", KEY]


async def test_the_title_in_a_row_is_for_those_who_may_read_and_masked_as_messages_are(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon:
        store = daemon.services.store
        session, _ = await store.create(KEY, "main")
        encoder = Encoder(store, daemon.services.patterns)
        titled = msgspec.structs.replace(session.entry, title="it is secret_key=abcdef123456")
        changed = ChangedEvent(KEY, session.session_id, "patch", None, titled)

        def title_for(client: Client) -> str | None:
            title: str | None = json.loads(encoder.frame(changed, client))["params"]["row"].get("title")
            return title

        assert title_for(Client()) == titled.title
        masked = title_for(Client(masks=True))
        assert masked is not None and masked.startswith("it is secret_key=") and "abcdef123456" not in masked
        assert title_for(Client(masks=True, reads=False)) is None
        assert title_for(Client(reads=False)) is None


async def test_the_name_in_a_row_is_masked_as_messages_are(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon:
        store = daemon.services.store
        session, _ = await store.create(KEY, "main")
        encoder = Encoder(store, daemon.services.patterns)
        named = msgspec.structs.replace(
            session.entry, display_name="its token=abcdef123456", subject="password=hunter22"
        )
        changed = ChangedEvent(KEY, session.session_id, "patch", None, named)
        for masks, reads in ((True, True), (True, False), (False, True), (False, False)):
            row = json.loads(encoder.frame(changed, Client(masks=masks, reads=reads)))["params"]["row"]
            shown = (row["displayName"], row["subject"])
            assert shown == (("its token=***", "password=***") if masks else (named.display_name, named.subject))


async def test_a_row_names_no_session_that_its_reader_may_not_see(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon:
        store = daemon.services.store
        session, _ = await store.create(KEY, "main")
        encoder = Encoder(store, daemon.services.patterns)
        linked = msgspec.structs.replace(session.entry, spawned_by="agent:other:main", continues="claude:a")
        changed = ChangedEvent(KEY, session.session_id, "patch", None, linked)
        other = Sight(level="agent", agent_id="other", own_key=KEY)
        for sight, shown in (
            (Sight(level="all", unlimited=True), {"spawnedBy": "agent:other:main", "continues": "claude:a"}),
            (Sight(level="tree", own_key=KEY), {}),
            (Sight(level="tree", own_key=KEY, sees_foreign=True), {"continues": "claude:a"}),
            (other, {"spawnedBy": "agent:other:main"}),
        ):
            client = Client()
            client.sight = sight
            row = json.loads(encoder.frame(changed, client))["params"]["row"]
            assert {name: row[name] for name in ("spawnedBy", "continues", "forkedFrom") if name in row} == shown


async def test_what_a_transcript_names_as_its_parent_may_be_no_key(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon:
        store = daemon.services.store
        session, _ = await store.create(KEY, "main")
        for odd in ("..", ":", "agent:", "agent:other", "agent:main", "other"):
            entry = msgspec.structs.replace(session.entry, spawned_by=odd)
            assert hidden_links(store, entry, Sight(level="agent", agent_id="main")) == ("spawned_by",)


async def test_event_params_are_as_documented(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon:
        store = daemon.services.store
        session, _ = await store.create(KEY, "main")

        def params_of(event: Any) -> tuple[str, Any]:
            method, params = describe_event(store, event, None, None)
            return method, json.loads(encode_call(method, params))["params"]

        method, params = params_of(message_event())
        assert (method, params) == (
            "session.message",
            {
                "sessionKey": KEY,
                "sessionId": "s",
                "messageId": "m1",
                "seq": 1,
                "cursor": "c1",
                "message": json.loads(MESSAGE),
                "usage": {"input": 1},
            },
        )
        assert MESSAGE in encode_call(*describe_event(store, message_event(), None, None))  # byte for byte
        assert "usage" not in params_of(message_event(b'{"role":"user","content":"\\"usage\\""}'))[1]
        gone = ChangedEvent(KEY, "s", "delete", "file removed", None)
        assert params_of(gone) == ("sessions.changed", {"sessionKey": KEY, "phase": "delete", "reason": "file removed"})
        listed = await _list(daemon)
        assert params_of(ChangedEvent(KEY, session.session_id, "patch", None, session.entry)) == (
            "sessions.changed",
            {"sessionKey": KEY, "phase": "patch", "row": listed},
        )
        live = LiveEvent(KEY, "session.delta", {"runId": "r", "text": "x"})
        assert params_of(live) == ("session.delta", {"sessionKey": KEY, "runId": "r", "text": "x"})
        resync = ResyncEvent(KEY, "s", "lagged", "c")
        assert params_of(resync) == ("session.resync", {"sessionKey": KEY, "reason": "lagged", "cursor": "c"})


async def _list(daemon: Any) -> Any:
    async with daemon.connect() as client:
        [row] = (await client.call("sessions_list"))["sessions"]
        return row


async def test_secrets_are_masked_in_messages_and_in_live_text(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon:
        store, patterns = daemon.services.store, daemon.services.patterns()
        live = LiveEvent(KEY, "session.tool", {"runId": "r", "phase": "end", "output": "password=abcdef123456"})
        half = {"previous_text": "the password=abcd"}
        thought = LiveEvent(KEY, "session.thought", {"runId": "r", "text": "abcdef123456 "}, **half)
        for event in (message_event(), live, thought):
            assert "abcdef123456" in str(encode_call(*describe_event(store, event, None, None)))
            assert "abcdef123456" not in str(encode_call(*describe_event(store, event, None, patterns)))


async def test_the_texts_of_a_question_are_for_those_who_read_or_answer_and_masked(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon:
        encoder = Encoder(daemon.services.store, daemon.services.patterns)
        secret = "it is secret_key=abcdef123456"
        options = (QuestionOption("secret_key=abcdef123456", secret, "allow_once"),)
        asked = QuestionAsked(KEY, Question(id="0" * 16, title=secret, detail=secret, options=options, asked_at=1))
        answer = QuestionAnswer(question_id="0" * 16, outcome="answered", option_id="a", note=secret, by="owner", at=2)
        for event in (asked, QuestionClosed(KEY, answer)):
            frames = {
                (masks, reads): json.loads(encoder.frame(event, Client(masks=masks, reads=reads)))
                for masks in (False, True)
                for reads in (False, True)
            }
            assert {frame["params"]["sessionKey"] for frame in frames.values()} == {KEY}
            assert secret in str(frames[False, True])
            # The id of an option is what an answer has to give back.
            masked = json.dumps(frames[True, True]["params"]).replace('"id": "secret_key=abcdef123456"', "")
            assert "it is secret_key=" in masked and "abcdef123456" not in masked
            for masks in (False, True):
                assert "secret" not in str(frames[masks, False])
                assert "optionId" not in str(frames[masks, False])
