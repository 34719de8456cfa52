import errno
import json
import socket
from contextlib import closing
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from support.patience import PATIENCE_S
from support.rows import check_each

from sessiond.errors import NotFound, NoThread
from sessiond.model.caller import OWNER, Caller
from sessiond.rpc.dispatch import Dispatcher
from sessiond.rpc.limits import Limits
from sessiond.rpc.method import Method
from sessiond.rpc.outgoing_requests import RemoteError
from sessiond.rpc.pace import Pace
from sessiond.rpc.peer import Peer
from sessiond.transports.framed import ndjson_link
from sessiond.transports.streams import ByteStream

READER = Caller(kind="token", scopes=frozenset(["read"]), session_key="agent:main:main")
PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'


def ok(result, request_id=1):
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def failure(code, message, data, request_id=1):
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message, "data": data}}


async def test_a_method_is_called_by_name_or_alias(connect):
    async with connect() as client:
        echoed = {"sessionKey": "x", "limit": 1.5, "attachments": []}
        for name in ("echo", "chat.echo", "say"):
            assert await client.call(name, {"sessionKey": "x", "limit": 1.5}) == ok(echoed)


@check_each("params", [b"", b',"params":null', b',"params":[]', b',"params":{}', b',"params": [ ] '])
async def test_omitted_null_and_empty_params_are_the_same(connect, params):
    async with connect() as client:
        await client.send(b'{"jsonrpc":"2.0","id":1,"method":"ping"' + params + b"}\n")
        assert await client.line() == ok({})


@check_each(
    ("params", "field", "message"),
    [
        ({"sessionKy": "x"}, "$.sessionKy", "`$.sessionKy`: there is no such parameter."),
        ({"sessionKey": 1}, "$.sessionKey", "`$.sessionKey`: text is expected, not 1."),
        ({"limit": "many"}, "$.limit", "`$.limit`: a whole number or a number is expected, not text."),
        ({"attachments": [{}]}, "$.attachments[0].name", "`$.attachments[0].name`: it is missing."),
        (
            {"attachments": [{"name": 1}]},
            "$.attachments[0].name",
            "`$.attachments[0].name`: text is expected, not 1.",
        ),
        (
            {"attachments": [{"name": "a", "nam": 1}]},
            "$.attachments[0].nam",
            "`$.attachments[0].nam`: there is no such parameter.",
        ),
        (["main"], "$", "Params go by name: send an object."),
        ({"_meta": 1}, "$._meta", "`$._meta` is an object."),
        ({"_meta": None}, "$._meta", "`$._meta` is an object."),
    ],
)
async def test_wrong_params_are_named_with_their_path(connect, params, field, message):
    async with connect() as client:
        assert await client.call("echo", params) == failure(-32602, message, {"type": "invalid_params", "field": field})


async def test_params_that_are_not_an_object_make_the_request_invalid(connect):
    async with connect() as client:
        for params in (1, "x", True):
            answer = await client.call("echo", params)
            assert (answer["id"], answer["error"]["code"]) == (1, -32600)


async def test_an_unknown_method_is_named(connect):
    async with connect() as client:
        assert await client.call("sessions.nope") == failure(
            -32601, "There is no method 'sessions.nope'.", {"type": "method_not_found"}
        )


async def test_an_unauthenticated_client_may_only_initialize(connect, stranger):
    refused = failure(-32001, "Say who you are first: call `initialize` with a token.", {"type": "unauthenticated"})
    async with connect(caller=stranger) as client:
        for method in ("ping", "echo", "nope", "$/cancelRequest"):
            assert await client.call(method, {"bad": 1}) == refused
        assert await client.call("initialize", {"token": "t1"}) == ok({"caller": "t1"})
        assert await client.call("ping") == ok({})


async def test_requests_sent_together_with_initialize_are_checked_after_it(connect, stranger):
    async with connect(caller=stranger) as client:
        await client.send(
            {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"token": "t1"}},
            {"jsonrpc": "2.0", "id": 2, "method": "whoami"},
        )
        assert await client.lines(2) == [
            ok({"caller": "t1"}),
            ok({"kind": "token", "run": None, "meta": None, "id": 2}, 2),
        ]


async def test_an_owner_that_shows_a_token_is_narrowed_before_its_next_request(connect):
    async with connect(caller=OWNER) as client:
        await client.send(
            {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"token": "t1"}},
            {"jsonrpc": "2.0", "id": 2, "method": "echo"},
        )
        answers = await client.lines(2)
        assert answers[1] == failure(-32003, "`echo` needs the scope `read`.", {"type": "forbidden"}, 2)


async def test_scope_is_checked_before_the_params(connect):
    async with connect(caller=READER) as client:
        assert await client.call("whoami", {"nonsense": 1}) == failure(
            -32003, "`whoami` needs the scope `list`.", {"type": "forbidden"}
        )


async def test_admin_implies_every_scope(connect):
    async with connect(caller=Caller(kind="token", scopes=frozenset(["admin"]))) as client:
        assert (await client.call("whoami"))["result"]["kind"] == "token"


async def test_an_expired_token_is_refused(connect):
    def caller(expires):
        return Caller(kind="token", scopes=frozenset(["list"]), expires_at_ms=expires)

    async with connect(caller=caller(1001), now_ms=1000) as client:
        assert await client.call("ping") == ok({})
    async with connect(caller=caller(1000), now_ms=1000) as client:
        assert await client.call("ping") == failure(-32001, "The token has expired.", {"type": "unauthenticated"})
        assert await client.call("initialize", {"token": "t2"}) == ok({"caller": "t2"})


async def test_meta_is_removed_before_the_params_are_checked(connect):
    async with connect() as client:
        assert (await client.call("whoami", {"_meta": {"x": 1}}))["result"]["meta"] == {"x": 1}
        echoed = await client.call("echo", {"sessionKey": '"_meta"', "_meta": {}})
        assert echoed["result"]["sessionKey"] == '"_meta"'
        assert (await client.call("whoami", {}))["result"]["meta"] is None


async def test_meta_may_change_the_caller_of_a_request(connect):
    async with connect(caller=READER) as client:
        client.peer.meta_caller = lambda meta: Caller(
            kind="token", scopes=frozenset(["list"]), run_id=str(meta["runId"])
        )
        answer = await client.call("whoami", {"_meta": {"runId": "r1"}})
        assert answer == ok({"kind": "token", "run": "r1", "meta": {"runId": "r1"}, "id": 1})
        assert (await client.call("whoami"))["error"]["code"] == -32003


@check_each(("own", "runs"), [(1000, None), (1001, 1000), (1000, 1001), (None, 1000)])
async def test_a_request_for_a_run_is_refused_when_its_token_or_that_of_the_connection_has_expired(connect, own, runs):
    def caller(expires):
        return Caller(kind="token", scopes=frozenset(["list"]), expires_at_ms=expires)

    async with connect(caller=caller(own), now_ms=1000) as client:
        client.peer.meta_caller = lambda meta: caller(runs)
        assert (await client.call("whoami", {"_meta": {}}))["error"]["code"] == -32001


async def test_typed_errors_are_answered_with_their_message_and_data(connect):
    async with connect() as client:
        assert await client.call("missing") == failure(-32002, "There is no such session.", {"type": "not_found"})
        assert await client.call("grouped") == failure(
            -32007, "Too much.", {"type": "overloaded", "code": "too_many_hops", "retryAfterMs": 250}
        )


@check_each(("method", "kind"), [("broken", KeyError), ("broken_later", ZeroDivisionError), ("unencodable", TypeError)])
async def test_a_fault_is_logged_and_tells_the_client_nothing(connect, method, kind):
    async with connect() as client:
        assert await client.call(method) == failure(
            -32603, "Something went wrong inside; the daemon's log says what.", {"type": "internal"}
        )
        [(what, error)] = client.services.faults
        assert (what, type(error)) == (method, kind)
        assert await client.call("ping") == ok({})


async def test_a_notification_is_never_answered(connect):
    async with connect() as client:
        for method in ("ping", "nope", "broken", "broken_later", "missing", "echo"):
            await client.send({"jsonrpc": "2.0", "method": method, "params": {"bad": 1}})
        await client.send(PING)
        assert await client.line() == ok({})


async def test_a_batch_has_one_answer(connect):
    async with connect() as client:
        await client.send(
            [
                {"jsonrpc": "2.0", "id": 1, "method": "ping"},
                {"jsonrpc": "2.0", "method": "ping"},
                7,
                {"jsonrpc": "2.0", "id": 2, "method": "broken_later"},
                {"jsonrpc": "2.0", "id": 3, "result": 1},
                {"jsonrpc": "2.0", "id": 4, "method": "nope"},
            ]
        )
        answers = await client.line()
        assert [(answer["id"], answer.get("error", {}).get("code")) for answer in answers] == [
            (1, None),
            (None, -32600),
            (4, -32601),
            (2, -32603),
        ]


async def test_a_batch_of_notifications_has_no_answer_and_an_empty_batch_is_an_error(connect):
    async with connect() as client:
        await client.send([{"jsonrpc": "2.0", "method": "ping"}], [], PING)
        assert [answer.get("error", {}).get("code") for answer in await client.lines(2)] == [-32600, None]
        await client.send([[]], b"[1,2\n", b"  [1]\n")
        nested, broken, bad = await client.lines(3)
        assert [answer["error"]["code"] for answer in nested] == [-32600]
        assert (broken["id"], broken["error"]["code"]) == (None, -32700)
        assert [answer["error"]["code"] for answer in bad] == [-32600]


async def test_a_batch_may_have_members_up_to_the_limit_and_not_beyond(connect):
    async with connect(limits=Limits(max_batch=3)) as client:
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        await client.send([ping] * 3, [ping] * 4)
        fits, over = await client.lines(2)
        assert fits == [ok({})] * 3
        assert over == failure(
            -32005,
            "A batch holds at most 3 messages.",
            {"type": "limit_exceeded", "limit": "batch", "value": 3},
            None,
        )


async def test_an_id_in_flight_cannot_be_used_again_until_it_is_answered(connect):
    async with connect() as client:
        wait = {"jsonrpc": "2.0", "id": "w", "method": "wait"}
        await client.send(wait, wait, {**wait, "method": "ping"})
        for answer in await client.lines(2):
            assert answer == failure(
                -32600, "A request with this id is still in flight.", {"type": "invalid_request"}, "w"
            )
        client.services.release.set()
        assert await client.line() == ok({"released": True}, "w")
        assert await client.call("wait", request_id="w") == ok({"released": True}, "w")


async def test_a_cancelled_request_is_answered_as_cancelled(connect):
    async with connect() as client:
        await client.send(
            {"jsonrpc": "2.0", "id": 1, "method": "wait"},
            {"jsonrpc": "2.0", "id": "1", "method": "wait"},
            {"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": 1}},
        )
        assert await client.line() == failure(-32800, "The request was cancelled.", {"type": "cancelled"})
        client.services.release.set()
        assert await client.line() == ok({"released": True}, "1")
        # Cancelling a request that is answered already, or never existed, is not an error.
        await client.send({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": 1}}, PING)
        assert await client.line() == ok({})
        assert await client.call("$/cancelRequest", {"id": 99}) == ok(None)


async def test_requests_in_flight_are_accepted_up_to_the_limit_and_not_beyond(connect):
    async with connect(limits=Limits(max_in_flight=3)) as client:
        wait = {"jsonrpc": "2.0", "method": "wait"}
        await client.send({**wait, "id": 1}, {**wait, "id": 2}, wait, {**wait, "id": 4})
        assert await client.line() == failure(
            -32007,
            "A connection has at most 3 requests in flight.",
            {"type": "overloaded", "limit": "limits.maxInFlight", "value": 3, "retryAfterMs": 1000},
            4,
        )
        # A request that is answered at once needs no place among those in flight.
        assert await client.call("ping", request_id=5) == ok({}, 5)
        client.services.release.set()
        assert sorted(answer["id"] for answer in await client.lines(2)) == [1, 2]


async def test_promised_results_are_sent_once_and_in_any_order(connect):
    async with connect(limits=Limits(max_in_flight=2)) as client:
        ask = {"jsonrpc": "2.0", "method": "promised"}
        await client.send({**ask, "id": 1}, {**ask, "id": 2}, {**ask, "id": 3}, {**ask, "id": 1})
        assert [answer["error"]["code"] for answer in await client.lines(2)] == [-32007, -32600]
        first, second = client.services.promises
        second.settle_with({"n": 2})
        first.fail(NotFound("There is no such session."))
        second.settle_with({"n": 3})
        assert await client.line() == ok({"n": 2}, 2)
        assert await client.line() == failure(-32002, "There is no such session.", {"type": "not_found"})
        assert await client.call("kept", request_id=4) == ok({"kept": True}, 4)


async def test_a_cancelled_promise_ignores_a_later_result(connect):
    async with connect() as client:
        await client.send({"jsonrpc": "2.0", "id": 1, "method": "promised"})
        cancel = {"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": 1}}
        await client.send(cancel)
        assert await client.line() == failure(-32800, "The request was cancelled.", {"type": "cancelled"})
        client.services.promises[0].settle_with({})
        assert await client.call("ping", request_id=2) == ok({}, 2)


async def test_a_half_closed_client_still_gets_its_promised_result(connect):
    async with connect() as client:
        await client.send({"jsonrpc": "2.0", "id": 1, "method": "promised"})
        await client.call("ping", request_id=2)
        await client.stream.send_eof()
        client.services.promises[0].settle_with({"n": 1})
        assert json.loads(await client.rest()) == ok({"n": 1})


async def test_a_stopping_daemon_refuses_new_requests_and_ends_those_that_wait(connect):
    async with connect() as client:
        await client.send({"jsonrpc": "2.0", "id": 1, "method": "wait"}, {**json.loads(PING), "id": 2})
        assert await client.line() == ok({}, 2)
        client.dispatcher.stopping = True
        stopping = {"type": "stopping", "retryAfterMs": 1000}
        message = "The daemon is stopping; try again when it is back."
        assert await client.call("ping", request_id=3) == failure(-32008, message, stopping, 3)
        client.peer.stop_requests()
        cut_off = "The daemon is stopping before this has ended: it may have been done or not."
        answer = await client.line()
        assert answer["error"].pop("message").startswith(cut_off)
        assert answer["error"] == {"code": -32008, "data": {**stopping, "begun": True}}


async def test_until_it_is_ready_requests_wait_and_none_overtakes_another_then(connect):
    ready = trio.Event()
    async with connect(ready=ready) as client:
        for number, method in enumerate(["wait", "echo", "missing", "ping", "whoami"], 1):
            params = {"limit": 1} if method == "echo" else {}
            await client.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        assert (await client.line())["id"] == 5  # it is answered before
        assert client.services.started == 0
        ready.set()
        # This one comes in the same moment, before those that waited had their turn.
        client.dispatcher.accept(client.peer, b'{"jsonrpc":"2.0","id":6,"method":"ping"}')
        # One that takes long keeps none of the others waiting.
        assert [(answer["id"], "error" in answer) for answer in await client.lines(4)] == [
            (2, False),
            (3, True),
            (4, False),
            (6, False),
        ]
        assert client.services.started == 1
        client.services.release.set()
        assert (await client.line())["result"] == {"released": True}
        # Now nothing waits any more, and a request is answered in the same moment.
        client.dispatcher.accept(client.peer, b'{"jsonrpc":"2.0","id":7,"method":"ping"}')
        assert client.peer.pending == {}


async def test_a_connection_on_which_nothing_waits_does_not_wait_for_the_others(connect):
    ready = trio.Event()
    async with connect(ready=ready) as client:
        await client.send({"jsonrpc": "2.0", "id": 1, "method": "ping"})
        await client.call("whoami", request_id=2)
        ours, theirs = socket.socketpair()
        with theirs, closing(ByteStream(ours)) as stream:
            other = Peer(ndjson_link(stream, client.dispatcher.limits, lambda: other), client.dispatcher, OWNER)
            ready.set()
            client.dispatcher.accept(other, b'{"jsonrpc":"2.0","id":3,"method":"ping"}')
            assert (other.pending, list(client.peer.pending)) == ({}, [1])
            theirs.setblocking(False)
            assert json.loads(theirs.recv(1000)) == ok({}, 3)
        assert (await client.line())["id"] == 1


async def test_requests_that_wait_until_it_is_ready_are_limited_even_if_their_handler_does_not_wait(connect):
    ready = trio.Event()
    async with connect(limits=Limits(max_in_flight=2), ready=ready) as client:
        await client.call("whoami")  # its connection is served
        for number in (1, 2, 3):
            client.dispatcher.accept(client.peer, b'{"jsonrpc":"2.0","id":%d,"method":"ping"}' % number)
        assert list(client.peer.pending) == [1, 2]
        refused = await client.line()
        assert (refused["id"], refused["error"]["data"]["limit"]) == (3, "limits.maxInFlight")
        ready.set()
        assert await client.lines(2) == [ok({}, 1), ok({}, 2)]


async def test_a_request_that_waited_is_judged_when_it_begins(connect):
    def caller(expires):
        return Caller(kind="token", scopes=frozenset(["read"]), expires_at_ms=expires)

    runs = {"ended": caller(None), "narrowed": caller(None), "lasts": caller(1001), "expires": caller(1001)}
    ready = trio.Event()
    async with connect(caller=caller(1002), now_ms=1000, ready=ready) as client:
        client.peer.meta_caller = lambda meta: runs[meta["run"]]
        for number, run in enumerate(runs, 11):
            params = {"limit": 1, "_meta": {"run": run}}
            await client.send({"jsonrpc": "2.0", "id": number, "method": "echo", "params": params})
        assert (await client.call("whoami"))["error"]["code"] == -32003  # it has read those before
        client.services.now_ms = 1001
        runs |= {"ended": caller(1000), "narrowed": Caller(kind="token", scopes=frozenset()), "lasts": caller(1002)}
        ready.set()
        codes = {answer["id"]: answer.get("error", {}).get("code") for answer in await client.lines(4)}
        assert codes == {11: -32001, 12: -32003, 13: None, 14: -32001}
    ready = trio.Event()
    async with connect(caller=caller(1001), now_ms=1000, ready=ready) as client:
        await client.send({"jsonrpc": "2.0", "id": 7, "method": "echo", "params": {"limit": 1}})
        assert (await client.call("whoami"))["error"]["code"] == -32003
        client.services.now_ms = 1001
        ready.set()
        assert (await client.line())["error"]["message"] == "The token has expired."


async def test_broken_json_inside_the_params_is_a_parse_error(connect):
    async with connect() as client:
        await client.send(b'{"jsonrpc":"2.0","id":1,"method":"echo","params":{"sessionKey":"\\ud800"}}\n')
        assert (await client.line())["error"]["code"] == -32700
        assert await client.call("ping") == ok({})


@pytest.mark.parametrize("value", [b'"\\ud800"', b'{"_meta":"\\ud800"}'])
async def test_broken_json_beside_meta_is_a_parse_error_too(connect, value):
    async with connect() as client:
        await client.send(b'{"jsonrpc":"2.0","id":1,"method":"echo","params":{"_meta":' + value + b"}}\n")
        assert (await client.line())["error"]["code"] in (-32700, -32602)
        await client.send(b'{"jsonrpc":"2.0","id":1,"method":"echo","params":["_meta"]}\n')
        assert (await client.line())["error"]["code"] == -32602


def test_two_methods_cannot_share_a_name(table):
    from sessiond.rpc.dispatch import Dispatcher

    with pytest.raises(ValueError, match="two methods are named ping"):
        Dispatcher([table[0], table[0]], None, limits=Limits(), on_fault=print)


async def test_a_contained_task_logs_its_fault_and_passes_cancellation_on(connect):
    async with connect() as client:

        async def fails():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                raise LookupError("x")

        await client.dispatcher.run_contained("connection", fails)
        assert [what for what, _ in client.services.faults] == ["connection"]
        with trio.move_on_after(0) as scope:
            await client.dispatcher.run_contained("connection", trio.sleep_forever)
        assert scope.cancelled_caught


async def test_a_request_that_runs_out_of_memory_is_refused_and_logged(connect):
    async with connect() as client:
        answer = await client.call("starved")
        assert (answer["error"]["code"], answer["error"]["data"]["type"]) == (-32007, "overloaded")
        assert [(what, type(error)) for what, error in client.services.faults] == [("starved", MemoryError)]
        assert await client.call("ping", request_id=2) == ok({}, 2)


class Threads:
    """Runs `left` pieces of work; then no thread can be started."""

    def __init__(self, left: int) -> None:
        self.left = left

    async def run(self, work: Any) -> Any:
        await trio.lowlevel.checkpoint()
        self.left -= 1
        if self.left < 0:
            raise NoThread
        return work()


LONG = {"jsonrpc": "2.0", "id": 2, "method": "echo", "params": {"sessionKey": "x" * 300_000}}


async def test_a_long_message_is_refused_when_no_thread_can_be_started(connect):
    async with connect() as client:
        client.dispatcher.run_in_thread = Threads(0).run
        # A batch has many ids.
        for message, request_id in ((LONG, 2), ([LONG], None), ({**LONG, "id": "a"}, "a")):
            await client.send(message)
            refused = await client.line()
            assert (refused["id"], refused["error"]["code"]) == (request_id, -32007)
            assert "cannot start a thread" in refused["error"]["message"]
            assert "memory" not in refused["error"]["message"]
        assert await client.call("ping", request_id=3) == ok({}, 3)


async def test_the_other_members_of_a_batch_are_answered_when_no_thread_can_be_started(connect):
    async with connect() as client:
        client.dispatcher.run_in_thread = Threads(1).run
        await client.send([json.loads(PING), LONG, {**json.loads(PING), "id": 3}])
        answers = await client.line()
        assert sorted(answer["id"] for answer in answers) == [1, 2, 3]
        assert [answer["error"]["code"] for answer in answers if answer["id"] == 2] == [-32007]


async def test_an_unreadable_answer_ends_the_wait_when_no_thread_can_be_started(connect):
    async with connect() as client:
        client.dispatcher.run_in_thread = Threads(0).run
        errors: list[RemoteError] = []

        async def ask() -> None:
            try:
                await client.peer.request("run.start", {})
            except RemoteError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            asked = await client.line()
            await client.send({"jsonrpc": "2.0", "id": asked["id"], "result": {"reply": "x" * 300_000}})
        assert "cannot be read" in str(errors[0])


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.EAGAIN, "no thread")])
async def test_a_shortage_in_a_task_is_logged_as_one_and_not_as_a_group(connect, error):
    async def fail():
        async with trio.open_nursery():
            raise error

    async with connect() as client:
        await client.dispatcher.run_contained("a connection", fail)
        assert client.services.faults == [("a connection", error)]
        client.services.faults.clear()


class NoParams(msgspec.Struct):
    pass


class LoopTurns(trio.abc.Instrument):
    """Counts the turns of the event loop."""

    count = 0

    def after_io_wait(self, timeout):
        self.count += 1


async def test_requests_that_waited_for_the_daemon_do_not_all_begin_in_one_turn_of_the_loop():
    ready, turns, begun = trio.Event(), LoopTurns(), []

    async def note_turn(ctx, params):
        begun.append(turns.count)
        await trio.lowlevel.checkpoint()
        return {}

    method = Method("note", None, NoParams, dict, note_turn, "Notes when it begins.")
    dispatcher = Dispatcher([method], None, limits=Limits(), on_fault=lambda *_: None, ready=ready)
    dispatcher.pace = Pace(0.0)  # no turn has room for more than one
    trio.lowlevel.add_instrument(turns)

    async def serve(stream):
        peer = Peer(ndjson_link(stream, Limits(), lambda: peer), dispatcher, READER)
        await peer.run()

    async with trio.open_nursery() as nursery:
        ends = []
        for _ in range(10):
            ours, theirs = (ByteStream(end) for end in socket.socketpair())
            ends += [ours, theirs]
            nursery.start_soon(serve, ours)
            await theirs.send_all(b'{"jsonrpc":"2.0","id":1,"method":"note"}\n')
        with trio.fail_after(PATIENCE_S):
            while len(dispatcher._readiness.waiting) < 10:  # noqa: ASYNC110 - the sockets have a part in it
                await trio.sleep(0.001)
            await trio.testing.wait_all_tasks_blocked()
            ready.set()
            for theirs in ends[1::2]:
                await theirs.receive_some()
        nursery.cancel_scope.cancel()
    trio.lowlevel.remove_instrument(turns)
    for end in ends:
        end.close()
    assert len(begun) == len(set(begun)) == 10, begun


@pytest.mark.parametrize("is_ready", [True, False])
async def test_a_request_whose_task_cannot_be_started_blocks_none_behind_it(connect, is_ready):
    ready = trio.Event()
    if is_ready:
        ready.set()
    async with connect(ready=ready) as client:
        await client.stream.send_eof()
        await client.ended.wait()  # no task can be started in its nursery any more
        client.dispatcher.accept(client.peer, b'{"jsonrpc":"2.0","id":1,"method":"refused_in_line"}')
        assert [what for what, _ in client.services.faults] == ["refused_in_line"]
        assert not client.peer.has_open_turns and not client.peer.pending and not client.dispatcher._readiness.waiting
