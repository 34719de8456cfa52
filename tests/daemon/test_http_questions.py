"""Questions over HTTP: the list, an answer, and their events on both streams, which have no id."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio
from support.in_process import InProcessDaemon, in_process_daemon
from support.in_process_agents import agent, attached_agents_config, until
from support.questions import ASKED, answered_outcome, ask_once, wait_for_question

from sessiond.daemon.http_page import add_page_routes
from sessiond.daemon.http_questions import add_question_routes
from sessiond.daemon.http_sessions import add_session_routes
from sessiond.errors import SessiondError
from sessiond.model.caller import OWNER, Caller
from sessiond.transports.exchange import EventStreamAnswer, HttpError, HttpRequest, HttpResponse, error_response
from sessiond.transports.routes import Router
from sessiond.transports.sse import EventStream

KEY = "agent:alice:main"


class Http:
    """The routes of a daemon in this process."""

    def __init__(self, there: InProcessDaemon) -> None:
        self.router = Router()
        for add in (add_session_routes, add_page_routes, add_question_routes):
            add(self.router, there.services)

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        query: Mapping[str, str] | None = None,
        kind: str = "application/json",
        caller: Caller = OWNER,
    ) -> Any:
        """The answer; of an error its status."""
        try:
            route, params = self.router.find(method, path)
            route.check_query(query or {})
            headers = {"content-type": kind}
            answer = await route.handler(HttpRequest(method, path, params, query or {}, headers, body, caller))
        except HttpError as error:
            return error.status
        except SessiondError as error:
            return error_response(error).status
        return json.loads(answer.body) if isinstance(answer, HttpResponse) else answer

    async def follow(
        self, path: str, query: Mapping[str, str], nursery: trio.Nursery, caller: Caller = OWNER
    ) -> list[str]:
        """The events of a stream as they come, as text."""
        events: list[str] = []

        async def send(data: bytes) -> None:
            events.append(data.decode())
            await trio.lowlevel.checkpoint()

        answer = await self.ask("GET", path, query=query, caller=caller)
        assert isinstance(answer, EventStreamAnswer)
        stream = EventStream(send, caller)
        nursery.start_soon(stream.run, answer.run, trio.sleep_forever)
        await until(lambda: events)
        return events


async def test_a_question_is_seen_and_answered_over_http(tmp_path: Path) -> None:
    async with (
        in_process_daemon(tmp_path, attached_agents_config("alice")) as there,
        agent(there, "alice", ask_once),
        there.connect() as owner,
        trio.open_nursery() as nursery,
    ):
        http = Http(there)
        await owner.call("sessions.create", key=KEY)
        listed_only = Caller(kind="token", scopes=frozenset({"list"}), is_page=True, token_id="0" * 32)
        of_session = await http.follow(f"/sessions/{KEY}/history", {"follow": "1"}, nursery)
        of_all = await http.follow("/events", {}, nursery)
        for_lists = await http.follow("/events", {}, nursery, caller=listed_only)
        sent = await owner.call("chat.send", sessionKey=KEY, message="go")
        question = await wait_for_question(owner)
        for query in ({"open": "1"}, {"sessionKey": KEY}, {"agentId": "alice", "open": "true"}, {}):
            assert await http.ask("GET", "/questions", query=query) == {"questions": [question]}
        assert await http.ask("GET", "/questions", query={"open": "0"}) == {"questions": []}
        assert await http.ask("GET", "/questions", query={"open": "perhaps"}) == 400
        assert await http.ask("GET", "/questions", query={"else": "1"}) == 400

        path = f"/questions/{question['id']}/answer"
        body = b'{"optionId":"yes","note":"go on"}'
        assert await http.ask("POST", path, body, kind="text/plain") == 415
        for bad in (b"", b"[]", b"\xff", b"{}", b'{"optionId":1}', b'{"optionId":"yes","else":1}', b"[" * 5000):
            assert await http.ask("POST", path, bad) == 400
        assert await http.ask("POST", path, b'{"optionId":"maybe"}') == 400
        assert await http.ask("POST", "/questions/none/answer", body) == 404
        done = {"id": question["id"], "optionId": "yes", "status": "answered"}
        assert await http.ask("POST", path, body) == done
        assert await http.ask("POST", path, body) == 409
        assert await answered_outcome(owner, sent["runId"]) == "answered yes go on owner"
        [closed] = (await owner.call("questions.list"))["questions"]
        assert closed["answer"]["road"] == "http"

        for events in (of_session, of_all, for_lists):
            await until(lambda events=events: any("question.answered" in one for one in events))
            mine = [one for one in events if one.startswith(("event: question.", "id: ")) and "question" in one[:30]]
            asked, answered = (one for one in mine if "question." in one.partition("\n")[0])
            assert asked.startswith("event: question.asked\ndata: ")
            assert answered.startswith("event: question.answered\ndata: ")
            assert "\nid:" not in asked + answered
            assert (ASKED["detail"].partition("\n")[0] in asked) is (events is not for_lists)
            assert ("go on" in answered) is (events is not for_lists)
        nursery.cancel_scope.cancel()
