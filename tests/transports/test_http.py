import json
from contextlib import suppress

import cbor2
import trio
from hypothesis import example, given
from hypothesis import strategies as st
from support.patience import PATIENCE_S
from support.rows import check_each
from support.sampling import spread

from sessiond.rpc.limits import Limits
from sessiond.transports.exchange import HttpError
from sessiond.transports.http_context import _target_of
from sessiond.transports.serve import ServerLimits

PING = '{"jsonrpc":"2.0","id":1,"method":"ping"}'
JSON = ("-H", "Content-Type: application/json")
HANDSHAKE = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")
UPGRADE = tuple(part for header in (*HANDSHAKE, "Sec-WebSocket-Key: " + "A" * 22 + "==") for part in ("-H", header))
BEARER = ("-H", "Authorization: Bearer reader")


async def wait_until(condition):
    with trio.fail_after(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - the kernel and other processes have a part in it
            await trio.sleep(0.001)


def split_responses(data):
    """Status and JSON body of each response in `data`, which came with lengths."""
    found = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:])}
        size = int(headers.get("content-length", 0))
        found.append((int(lines[0].split()[1]), json.loads(data[:size] or "null"), headers))
        data = data[size:]
    return found


async def test_curl_calls_a_method_on_the_unix_socket(open_server):
    async with open_server() as running:
        status, body = await running.curl("/rpc", *JSON, "-d", PING)
        assert (status, json.loads(body)) == (200, {"jsonrpc": "2.0", "id": 1, "result": {}})
        assert (await running.curl("/rpc", "-d", PING))[0] == 200  # with the content type that curl sends by default
        assert (await running.curl("/rpc", "-H", "Content-Type: application/json; charset=utf-8", "-d", PING))[0] == 200
        assert (await running.curl("/rpc", "-H", "Content-Type: text/plain", "-d", PING))[0] == 415


def call(method, request_id: object = 1, **params):
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})


@check_each(
    ("body", "status", "code"),
    [
        ("{", 400, -32700),
        ("", 400, -32700),
        ("{}", 400, -32600),
        ("[]", 400, -32600),
        ("[" * 100_000, 400, -32600),
        (call("nope"), 404, -32601),
        (call("echo"), 400, -32602),
        (call("echo", x=1), 400, -32602),
        (call("broken"), 500, -32603),
        (call("conflict"), 409, -32004),
        (call("subscribe"), 422, -32006),
    ],
)
async def test_a_single_call_has_the_http_status_of_its_error(open_server, body, status, code):
    async with open_server() as running:
        found, text = await running.curl("/rpc", *JSON, "--data-binary", "@-", stdin=body.encode())
        assert (found, json.loads(text)["error"]["code"]) == (status, code)


async def test_batches_and_notifications_have_their_own_http_statuses(open_server):
    async with open_server() as running:
        status, body = await running.curl("/rpc", *JSON, "-d", f"[{PING},{call('nope', 2)}]")
        assert (status, [answer["id"] for answer in json.loads(body)]) == (200, [1, 2])
        notification = '{"jsonrpc":"2.0","method":"broken"}'
        assert await running.curl("/rpc", *JSON, "-d", notification) == (204, "")
        assert await running.curl("/rpc", *JSON, "-d", f"[{notification}]") == (204, "")


async def test_a_body_may_be_cbor(open_server):
    async with open_server() as running:
        import httpx

        with trio.fail_after(PATIENCE_S):
            transport = httpx.AsyncHTTPTransport(uds=str(running.owner), verify=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://d") as client:
                cbor = {"Content-Type": "application/cbor"}
                asked = cbor2.dumps({"jsonrpc": "2.0", "id": 1, "method": "echo", "params": {"text": "hé"}})
                answer = await client.post("/rpc", content=asked, headers=cbor)
                assert (answer.status_code, answer.headers["content-type"]) == (200, "application/cbor")
                assert cbor2.loads(answer.content) == {"jsonrpc": "2.0", "id": 1, "result": {"text": "hé"}}
                for bad, status in ((b"\xff", 400), (asked + b"\x00", 400), (b"\x81" * 1000, 400)):
                    refused = await client.post("/rpc", content=bad, headers=cbor)
                    assert (refused.status_code, cbor2.loads(refused.content)["id"]) == (status, None)


async def test_the_agent_socket_and_tcp_require_a_token(open_server):
    async with open_server() as running:

        async def over_tcp(*options):
            return await running.curl_tcp("/rpc", *options, "-d", call("whoami"))

        async def over_agent(*options):
            return await running.curl("/rpc", *options, "-d", call("whoami"), socket=running.agent)

        for ask in (over_tcp, over_agent):
            status, body = await ask()
            assert (status, json.loads(body)) == (
                401,
                {
                    "ok": False,
                    "error": {
                        "type": "unauthenticated",
                        "message": "A token is needed: Authorization: Bearer <token>.",
                    },
                },
            )
            assert (await ask("-H", "Authorization: Bearer bad"))[0] == 401
            status, body = await ask(*BEARER)
            assert (status, json.loads(body)["result"]) == (200, {"token": "t-reader"})
        assert json.loads((await running.curl("/rpc", "-d", call("whoami")))[1])["result"] == {"token": None}
        assert (await running.curl("/rpc", *BEARER, "-d", call("whoami")))[1].count("t-reader") == 1
        # The only thing that is answered without a token.
        for socket in (running.owner, running.agent):
            assert await running.curl("/healthz", socket=socket) == (200, '{"ok":true}')
        assert await running.curl_tcp("/healthz") == (200, '{"ok":true}')


@check_each(
    ("headers", "status"),
    # Over HTTP/1.1 as it is, every combination: tests/trust/test_gate.py.
    spread(
        [
            (["Host: localhost.evil:{port}"], 403),
            (["Host: evil"], 403),
            (["Host: 127.0.0.1"], 403),
            (["Host: 127.0.0.1:1"], 403),
            (["Host: localhost:{port}"], 200),
            (["Origin: null"], 403),
            (["Origin: http://evil"], 403),
            (["Origin: http://localhost:{port}.evil"], 403),
            (["Origin: http://localhost:{port}"], 200),
            (["Origin: https://app.example"], 200),
            (["Origin: https://app.example", "Origin: http://evil"], 403),
        ],
        6,
    ),
)
async def test_tcp_accepts_only_loopback_hosts_and_allowed_origins(open_server, headers, status):
    async with open_server(rules=ServerLimits(allowed_origins=frozenset(["https://app.example"]))) as running:
        port = running.tcp.split(":")[1]
        options = [part for header in headers for part in ("-H", header.format(port=port))]
        for path in ("/healthz", "/sessions/main/history", "/ws"):
            expected = {"/ws": 426}.get(path, 200) if status == 200 else status
            assert (await running.curl_tcp(path, *BEARER, *options))[0] == expected, path


async def test_requests_with_no_two_or_foreign_hosts_are_refused(open_server):
    async with open_server() as running:

        async def status(head):
            [(found, _, _)] = split_responses(await running.raw_tcp(head.format(host=running.tcp).encode()))
            return found

        assert await status("GET /healthz HTTP/1.1\r\nHost: {host}\r\nHost: {host}\r\n\r\n") == 400
        assert await status("GET /healthz HTTP/1.1\r\n\r\n") == 400
        assert await status("GET /healthz HTTP/1.0\r\n\r\n") == 403
        assert await status("GET http://{host}/healthz HTTP/1.1\r\nHost: {host}\r\n\r\n") == 200
        assert await status("GET http://evil/healthz HTTP/1.1\r\nHost: {host}\r\n\r\n") == 403
        assert await status("GET http://{host}/healthz HTTP/1.1\r\nHost: evil\r\n\r\n") == 403
        assert await status("GET https://{host}/healthz HTTP/1.1\r\nHost: {host}\r\n\r\n") == 400
        assert await status("CONNECT evil:80 HTTP/1.1\r\nHost: {host}\r\n\r\n") == 400


async def test_tcp_speaks_http_only(open_server):
    async with open_server() as running:
        for data in (PING.encode() + b"\n", b"\xa0"):
            assert json.loads(await running.raw_tcp(data))["error"]["code"] == -32600


async def test_an_allowed_origin_passes_preflight_and_may_read_the_answer(open_server):
    async with open_server(rules=ServerLimits(allowed_origins=frozenset(["https://app.example"]))) as running:
        begin = f"OPTIONS /rpc HTTP/1.1\r\nHost: {running.tcp}\r\n"
        head = begin + "Origin: {}\r\nAccess-Control-Request-Method: POST\r\n\r\n"
        [(status, _, headers)] = split_responses(await running.raw_tcp(head.format("https://app.example").encode()))
        assert (status, headers["access-control-allow-origin"]) == (204, "https://app.example")
        assert "authorization" in headers["access-control-allow-headers"]
        [(status, _, headers)] = split_responses(await running.raw_tcp(head.format("https://evil").encode()))
        assert (status, "access-control-allow-origin" in headers) == (403, False)
        get = f"GET /nope HTTP/1.1\r\nHost: {running.tcp}\r\nOrigin: https://app.example\r\n\r\n"
        [(status, _, headers)] = split_responses(await running.raw_tcp(get.encode()))
        assert (status, headers["access-control-allow-origin"], headers["vary"]) == (
            404,
            "https://app.example",
            "Origin",
        )


async def test_a_path_is_split_before_its_parts_are_decoded(open_server):
    async with open_server() as running:

        async def key(path):
            status, body = await running.curl(path, "--path-as-is")
            return json.loads(body)["key"] if status == 200 else status

        assert await key("/sessions/agent:main:main/history") == "agent:main:main"
        assert await key("/sessions/agent%3Amain%3Aa%2Fb/history?x=1") == "agent:main:a/b"
        assert await key("/sessions/../history") == ".."
        assert await key("/sessions//history") == 404
        assert await key("/sessions/a/b/history") == 404
        _, body = await running.curl("/sessions/k/history?limit=5&cursor=a%26b&empty=&follow")
        assert json.loads(body)["query"] == {"limit": "5", "cursor": "a&b", "empty": "", "follow": ""}
        assert (await running.curl("/sessions/k/history?" + "&".join("abc" for _ in range(33))))[0] == 400
        assert (await running.curl("/sessions/k/history?a=%ff"))[0] == 400


async def test_an_unknown_query_parameter_is_refused_by_name(open_server):
    async with open_server() as running:
        cases = {"/sessions/k/history?limt=5": "limt", "/healthz?x": "x", "/ws?token=t": "token", "/refuse?a=1": "a"}
        for path, name in cases.items():
            status, body = await running.curl(path)
            if path.startswith("/ws"):
                status, body = await running.curl(path, *UPGRADE)
            assert (status, json.loads(body)["error"]["type"]) == (400, "invalid_params"), path
            assert json.loads(body)["error"]["field"] == name
        # A client without a token must not learn which parameters a route has.
        assert (await running.curl("/sessions/k/history?limt=5", socket=running.agent))[0] == 401


async def test_two_content_lengths_are_refused_and_what_follows_is_not_served(open_server):
    async with open_server() as running:
        hidden = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        for version, lengths in (
            (b"1.1", b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n"),
            (b"1.1", b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n"),
            (b"1.0", b"Connection: keep-alive\r\nTransfer-Encoding: chunked\r\n"),
        ):
            head = b"POST /rpc HTTP/%b\r\nHost: x\r\n%b\r\n" % (version, lengths)
            [(status, _, headers)] = split_responses(await running.raw(head + b"0\r\n\r\n" + hidden))
            assert (status, headers["connection"]) == (400, "close"), head


@check_each("target", [b"http://[/", b"http://[::1/x", b"http://]/", b"http:///x", b"x", b"http://[v]/"])
async def test_an_invalid_request_target_is_refused(open_server, target):
    async with open_server() as running:
        [(status, body, _)] = split_responses(await running.raw(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n"))
        assert (status, body["error"]["type"]) == (400, "bad_request")
        assert running.services.faults == []


@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1))
@example("http://[/")
def test_any_target_is_parsed_or_refused(target):
    with suppress(HttpError):
        assert _target_of(target).path


async def test_empty_lines_before_a_request_are_skipped(open_server):
    async with open_server() as running:
        one = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        post = b"POST /rpc HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b\r\n" % (len(PING), PING.encode())
        found = split_responses(await running.raw(post + one + b"\r\n\r\n" + post))
        assert [status for status, _, _ in found] == [200, 200, 200]
        async with await trio.open_unix_socket(running.owner) as stream:
            for byte in post + one:  # the empty line comes in two pieces
                await stream.send_all(bytes([byte]))
            await stream.send_eof()
            data = b"".join([chunk async for chunk in stream])
        assert [status for status, _, _ in split_responses(data)] == [200, 200]
        assert [status for status, _, _ in split_responses(await running.raw(one + b"\rGET"))] == [200, 400]


async def test_errors_are_json(open_server):
    async with open_server() as running:

        def error(kind, message, **more):
            return {"ok": False, "error": {"type": kind, "message": message, **more}}

        status, body = await running.curl("/nope")
        assert (status, json.loads(body)) == (404, error("not_found", "There is nothing at this path."))
        status, body = await running.curl("/refuse")
        assert (status, json.loads(body)) == (409, error("conflict", "The label is in use.", code="label_in_use"))
        status, body = await running.curl("/fault")
        assert (status, json.loads(body)["error"]["type"]) == (500, "internal")
        assert [(what, type(fault)) for what, fault in running.services.faults] == [("/fault", LookupError)]
        [(status, body, headers)] = split_responses(await running.raw(b"DELETE /rpc HTTP/1.1\r\nHost: x\r\n\r\n"))
        assert (status, body["error"]["type"], headers["allow"]) == (405, "method_not_allowed", "POST")


async def test_a_connection_is_kept_alive_for_the_next_request(open_server):
    async with open_server() as running:
        one = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        post = b"POST /rpc HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(PING), PING.encode())
        chunked = (
            b"POST /rpc HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n"
            % (
                PING[:5].encode(),
                len(PING) - 5,
                PING[5:].encode(),
            )
        )
        found = split_responses(await running.raw(one + post + chunked + one))
        assert [status for status, _, _ in found] == [200, 200, 200, 200]
        assert found[1][1] == found[2][1] == {"jsonrpc": "2.0", "id": 1, "result": {}}
        # HTTP/1.0 and `Connection: close` end it.
        for ending in (
            b"GET /healthz HTTP/1.0\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        ):
            assert len(split_responses(await running.raw(ending + one))) == 1
        # A refusal keeps it open where the whole request was read.
        found = split_responses(await running.raw(b"GET /nope HTTP/1.1\r\nHost: x\r\n\r\n" + one))
        assert [status for status, _, _ in found] == [404, 200]
        # An offer to upgrade to another protocol is ignored.
        h2c = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
        assert [status for status, _, _ in split_responses(await running.raw(h2c))] == [200]


async def test_head_is_answered_like_get_without_the_body(open_server):
    async with open_server() as running:
        data = await running.raw(b"HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        head, get = data.split(b"HTTP/1.1 200")[1:]
        assert b"Content-Length: 11\r\n" in head and head.endswith(b"\r\n\r\n")
        assert get.endswith(b'{"ok":true}')


async def test_bodies_are_accepted_up_to_the_limit_and_not_beyond(open_server):
    async with open_server() as running:

        def post(size, chunked):
            head = b"POST /sessions/k/kill HTTP/1.1\r\nHost: x\r\n"
            if chunked:
                return head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (size, b"x" * size)
            return head + b"Content-Length: %d\r\n\r\n" % size + b"x" * size

        for chunked in (False, True):
            [(status, body, _)] = split_responses(await running.raw(post(1000, chunked)))
            assert (status, body) == (200, {"bytes": 1000})
            [(status, body, headers)] = split_responses(await running.raw(post(1001, chunked)))
            assert (status, body["error"]) == (
                413,
                {
                    "type": "limit_exceeded",
                    "message": "A body may have 1000 bytes here.",
                    "limit": "body",
                    "value": 1000,
                },
            )
        # An announced length over the limit is refused without waiting for the body, however large it is.
        [(status, _, headers)] = split_responses(await running.raw(post(1001, False)[:200]))
        assert (status, headers["connection"]) == (413, "close")
    async with open_server(limits=Limits(max_frame_bytes=100_000)) as running:
        assert (await running.curl("/rpc", "--data-binary", "@-", stdin=b"[" * 100_000))[0] == 400
        assert (await running.curl("/rpc", "--data-binary", "@-", stdin=b"[" * 3_000_000))[0] == 413


async def test_expect_100_continue_is_answered_or_refused(open_server):
    async with open_server() as running:
        head = b"POST %b HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
        async with await trio.open_unix_socket(running.owner) as stream:
            await stream.send_all(head % b"/sessions/k/kill")
            with trio.fail_after(PATIENCE_S):
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 100 ")
                await stream.send_all(b"abc")
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")
        refused = await running.raw(head % b"/nope")
        assert refused.startswith(b"HTTP/1.1 404 ") and b"Connection: close" in refused
        refused = await running.raw(head % b"/sessions/k/kill", running.agent)
        assert refused.startswith(b"HTTP/1.1 401 ") and b"WWW-Authenticate: Bearer" in refused


@check_each(
    ("data", "status"),
    [
        (b"GET\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n", 400),
        (b"POST /rpc HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n", 400),
        (b"POST /rpc HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST /rpc HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"POST /rpc HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST /rpc HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000, 431),
        (b"A" * 100_000, 431),
    ],
)
async def test_malformed_http_is_refused_in_http(open_server, data, status):
    async with open_server() as running:
        [(found, body, headers)] = split_responses(await running.raw(data))
        assert (found, body["ok"], headers.get("connection")) == (status, False, "close")
        assert running.services.faults == []


async def test_when_a_client_goes_away_its_requests_are_cancelled(open_server):
    async with open_server() as running:
        post = b"POST /rpc HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
        wait = call("wait").encode()
        for request in (b"GET /hang HTTP/1.1\r\nHost: x\r\n\r\n", post % (len(wait), wait)):
            stream = await trio.open_unix_socket(running.owner)
            await stream.send_all(request)
            before = running.services.started
            await wait_until(lambda before=before: running.services.started > before)
            await stream.aclose()
        await wait_until(lambda: running.services.ended == 2)
        await wait_until(lambda: running.server.connections == 0)
        assert running.services.faults == []


async def test_a_half_closed_client_still_gets_its_answer(open_server):
    async with open_server() as running, trio.open_nursery() as nursery:

        async def release():
            await wait_until(lambda: running.services.started)
            running.services.release.set()

        nursery.start_soon(release)
        wait = call("wait").encode()
        data = await running.raw(b"POST /rpc HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(wait), wait))
        assert split_responses(data)[0][1]["result"] == {"released": True}


async def test_an_idle_connection_is_closed_without_a_word(open_server):
    async with open_server(rules=ServerLimits(first_message_s=2)) as running:
        async with await trio.open_unix_socket(running.agent) as stream:
            await stream.send_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            with trio.fail_after(PATIENCE_S):
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
                assert await stream.receive_some() == b""


async def test_http_is_imported_by_the_first_http_client_only():
    import subprocess
    import sys

    code = (
        "import sys, sessiond.transports.serve\n"
        "late = {'h11', 'cbor2', 'trio_websocket', 'wsproto', 'sessiond.transports.http_context'}\n"
        "assert not late & set(sys.modules), late & set(sys.modules)"
    )
    await trio.run_process([sys.executable, "-c", code], stdout=subprocess.DEVNULL)


EVERY_ANSWER = {
    "a result": ("POST /rpc", "Content-Type: application/json\r\nContent-Length: 40\r\n", PING, 200),
    "nothing there": ("GET /nothing", "", "", 404),
    "another method": ("DELETE /rpc", "", "", 405),
    "another type": ("POST /rpc", "Content-Type: text/plain\r\nContent-Length: 40\r\n", PING, 415),
    "no http": ("GET /\x01", "", "", 400),
    "alive": ("GET /healthz", "", "", 200),
    "alive, in short": ("HEAD /healthz", "", "", 200),
}


@check_each("case", EVERY_ANSWER)
async def test_every_response_has_the_required_headers_once(open_server, case):
    line, more, body, status = EVERY_ANSWER[case]
    assert len(PING) == 40
    async with open_server() as running:
        said = f"{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{more}\r\n{body}".encode()
        head = (await running.raw(said)).partition(b"\r\n\r\n")[0].decode().split("\r\n")
    headers = [tuple(header.split(": ", 1)) for header in head[1:]]
    named = {name.lower(): value for name, value in headers}
    assert len(named) == len(headers), "no header is there twice"
    assert int(head[0].split()[1]) == status
    assert named["cache-control"] == "no-store"
    assert named["x-content-type-options"] == "nosniff"
    assert named["connection"] == "close"
    assert named["content-type"].split(";")[0] in ("application/json", "text/plain")
    assert int(named["content-length"]) > 0
    assert set(named) <= {
        *("cache-control", "x-content-type-options", "connection", "content-type", "content-length", "date", "allow"),
        *("accept", "server"),
    }


async def test_an_event_stream_has_the_required_headers(open_server):
    async with open_server() as running:
        said = b"GET /events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
        head = (await running.raw(said)).partition(b"\r\n\r\n")[0].decode().lower()
    assert head.startswith("http/1.1 200")
    for header in ("content-type: text/event-stream", "cache-control: no-store", "x-content-type-options: nosniff"):
        assert f"\r\n{header}" in head
