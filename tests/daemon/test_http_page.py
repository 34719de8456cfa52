"""The routes of the owner's page on the real daemon, over loopback: its files, its token, its end, its events."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from zipfile import Path as ZipPath
from zipfile import ZipFile

import httpx
import pytest
from support.owner_page import CLIENT, OwnerPage, open_page, trade
from support.real_daemon import Daemon
from support.rows import check_each

import sessiond
from sessiond.daemon.http_page import PageFiles
from sessiond.errors import NotFound
from sessiond.model.caller import NOBODY
from sessiond.transports.exchange import HttpRequest, HttpResponse

pytestmark = pytest.mark.system

WEB = Path(sessiond.__file__).parent / "web"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
# Compressed: all files together, with the types and the reasons that stand in them, and what the first rows wait for.
MOST_BYTES, MOST_AT_ONCE = 60_000, 22_500
BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    made = Daemon(tmp_path_factory.mktemp("page")).start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def page(running: Daemon) -> OwnerPage:
    return open_page(running)


def get(page: OwnerPage, path: str, method: str = "GET", **headers: str) -> httpx.Response:
    return CLIENT.request(method, page.address + path, headers=headers)


def test_the_page_needs_no_configuration_and_stays_on_one_port_of_loopback(running: Daemon, page: OwnerPage) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:[0-9]+/", page.address)
    assert running.call("http.open", scopes=["list"])["address"] == page.address
    assert running.process is not None
    port = f":{urlsplit(page.address).port:04X}"
    listening = [
        line.split()[1]
        for line in Path(f"/proc/{running.process.pid}/net/tcp").read_text().splitlines()
        if line.split()[3] == "0A" and line.split()[1].endswith(port)
    ]
    assert listening == [f"0100007F{port}"]


def test_every_file_is_served_as_it_lies_there_with_a_policy_that_loads_nothing_else(page: OwnerPage) -> None:
    names = PageFiles().names
    assert "client.js" in names
    for name in names:
        got, head = get(page, name), get(page, name, "HEAD")
        assert got.content == (WEB / name).read_bytes()
        assert got.headers["content-type"] == TYPES[name.rpartition(".")[2]]
        for header, value in (
            ("content-security-policy", POLICY),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-store"),
            ("cross-origin-resource-policy", "same-origin"),
            ("cross-origin-opener-policy", "same-origin"),
        ):
            assert (got.headers[header], head.headers[header]) == (value, value), name
        assert (head.content, head.headers["content-length"]) == (b"", str(len(got.content)))
        assert "set-cookie" not in got.headers


def test_the_whole_page_is_light_and_names_no_other_host() -> None:
    names = list_in_order_of_loading()
    texts = {name: (WEB / name).read_bytes() for name in names}
    assert len(gzip.compress(b"".join(texts.values()), 9)) <= MOST_BYTES
    told = dict(PageFiles()._index_headers)["Link"]
    later = set(re.findall(rb'href="([\w.-]+)" disabled', texts["index.html"]))
    assert later < {name.encode() for name in names}
    at_once = [
        text
        for name, text in texts.items()
        if (f"<{name}>" in told if name.endswith(".js") else name.encode() not in later)
    ]
    assert len(gzip.compress(b"".join(at_once), 9)) <= MOST_AT_ONCE
    # The namespace of SVG is a name, which nobody fetches.
    urls = {url for text in texts.values() for url in _URL.findall(text)}
    assert urls <= {b"http://www.w3.org/2000/svg"}, urls


def list_in_order_of_loading() -> list[str]:
    """All files: first what is no module, then each module before those that it imports, at once or later."""
    names = PageFiles().names
    ahead, modules = ["page.js"], []
    while ahead:
        name = ahead.pop()
        if name not in modules:
            modules.append(name)
            ahead += reversed(re.findall(r'["\']\./([\w.-]+\.js)["\']', (WEB / name).read_text()))
    assert sorted(modules) == [name for name in names if name.endswith(".js")], "a module that nothing loads"
    return [*(name for name in names if not name.endswith(".js")), *modules]


_URL = re.compile(rb"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}[^\s\"'`]*")


@check_each("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "PROPFIND"])
def test_a_file_is_read_and_nothing_else(page: OwnerPage, method: str) -> None:
    got = get(page, "client.js", method)
    assert (got.status_code, got.headers["allow"]) == (405, "GET, HEAD")


@check_each(
    "path",
    [
        "../pyproject.toml",
        "..%2f__init__.py",
        "%2e%2e/__init__.py",
        "web/client.js",
        "./client.js/",
        "client.js/..",
        "client.js%00",
        "client.js%20",
        "/client.js",
        "//etc/passwd",
        "CLIENT.JS",
        "client",
        ".",
        "..",
        "__init__.py",
        "page",
        "page/",
        "page/token/x",
    ],
)
def test_no_path_leads_out_of_the_folder(page: OwnerPage, path: str) -> None:
    host = urlsplit(page.address).netloc
    # As it stands here: a client would resolve the dots.
    request = CLIENT.build_request("GET", page.address)
    request.extensions = {"target": b"/" + path.encode()}
    got = CLIENT.send(request)
    assert got.request.headers["host"] == host
    assert got.status_code in (400, 404), (path, got.text)


def test_a_query_is_no_part_of_a_file(page: OwnerPage) -> None:
    assert get(page, "client.js?v=1").status_code == 400


def test_a_browser_gets_the_page_and_is_told_of_all_its_modules_at_once(page: OwnerPage) -> None:
    if not (WEB / "index.html").exists():
        pytest.skip("there is no page yet")
    got = get(page, "", **BROWSER)
    assert (got.status_code, got.headers["content-type"], got.headers["vary"]) == (200, TYPES["html"], "Accept")
    assert (got.content, got.headers["content-security-policy"]) == ((WEB / "index.html").read_bytes(), POLICY)
    modules = re.findall(r"<([\w.-]+)>; rel=modulepreload", got.headers["link"])
    # First what asks for the first rows.
    assert modules[:2] == ["first-look.js", "client.js"] and "page.js" in modules
    assert set(modules) <= set(PageFiles().names)


def test_the_modules_that_are_told_of_are_those_that_are_imported_at_once(tmp_path: Path) -> None:
    for name, text in (
        ("page.js", 'import { one,\n two } from "./a.js";\nimport "./b.js";\nconst on = () => import("./late.js");\n'),
        ("a.js", "export { three } from './c.js';\nimport './page.js';\n// import './comment.js'\n"),
        ("b.js", 'import x from "https://elsewhere.example/y.js";\nimport y from "./gone.js";\n'),
        ("c.js", 'say("import z from ./late.js");\n'),
        ("late.js", ""),
        ("comment.js", ""),
        ("index.html", '<script type="module" async src="first.js"></script>\n<script src="page.js"></script>'),
        ("first.js", 'import "./c.js";\n'),
    ):
        (tmp_path / name).write_text(text)
    headers = dict(PageFiles(tmp_path)._index_headers)
    assert headers["Link"] == ", ".join(f"<{name}.js>; rel=modulepreload" for name in ("first", "c", "page", "a", "b"))


async def test_a_file_that_was_changed_is_read_anew_and_one_that_is_gone_is_not_found(
    tmp_path: Path,
) -> None:
    (tmp_path / "page.js").write_text("one")
    web = PageFiles(tmp_path)
    request = HttpRequest("GET", "/page.js", {}, {}, {}, b"", NOBODY)

    async def read() -> bytes:
        answer = await web.serve("page.js", request)
        assert isinstance(answer, HttpResponse)
        return answer.body

    assert [await read(), await read()] == [b"one", b"one"]
    (tmp_path / "page.js").write_text("two")
    os.utime(tmp_path / "page.js", ns=(1, 1))
    assert await read() == b"two"
    (tmp_path / "page.js").unlink()
    with pytest.raises(NotFound):
        await read()


async def test_the_files_are_served_from_an_archive_too(tmp_path: Path) -> None:
    """As where sessiond is imported from a zip file."""
    with ZipFile(tmp_path / "sessiond.zip", "w") as archive:
        archive.writestr("sessiond/web/page.js", "zipped")
    web = PageFiles(ZipPath(tmp_path / "sessiond.zip", "sessiond/web/"))
    answer = await web.serve("page.js", HttpRequest("GET", "/page.js", {}, {}, {}, b"", NOBODY))
    assert isinstance(answer, HttpResponse)
    assert (web.names, answer.body) == (["page.js"], b"zipped")


def test_a_person_with_curl_gets_the_list_of_routes(page: OwnerPage) -> None:
    got = get(page, "", Accept="*/*")
    assert got.headers["content-type"] == "text/plain; charset=utf-8"
    roads = [line.split()[1].partition("?")[0] for line in got.text.splitlines() if line[:4] in ("GET ", "POST")]
    assert set(roads) == {
        *(
            "/rpc",
            "/sessions/{key}/history",
            "/sessions/{key}/kill",
            "/ws",
            "/events",
            "/questions",
            "/questions/{id}/answer",
            "/metrics",
            "/healthz",
        ),
    }


def test_a_code_works_once_and_the_token_is_named_and_listed_as_a_pages(running: Daemon) -> None:
    opened = running.call("http.open", scopes=["list", "read", "send"], ttlSeconds=600)
    assert opened["codeSeconds"] == 30 and len(opened["code"]) >= 32
    got = trade(opened["address"], opened["code"])
    assert (got.status_code, got.json()["scopes"]) == (200, ["list", "read", "send"])
    assert "set-cookie" not in got.headers and got.headers["cache-control"] == "no-store"
    again = trade(opened["address"], opened["code"])
    assert (again.status_code, again.json()["error"]["code"]) == (401, "page_code")
    assert "sessiond web" in again.json()["error"]["message"]
    [row] = [row for row in running.call("tokens.list")["tokens"] if row["id"] == got.json()["id"]]
    assert (row["page"], row["scopes"]) == (True, ["list", "read", "send"])
    assert row["expiresAt"] - row["issuedAt"] == 600_000
    assert not {opened["code"], got.json()["token"]} & set(re.findall(r"[\w-]+", running.log.read_text()))


@check_each(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'"x"',
        b'{"code": 1}',
        b'{"code": null}',
        b'{"code": "x", "token": "y"}',
        b"\xff",
        b"[" * 4000,
    ],
)
def test_a_body_that_is_no_trade_is_refused(page: OwnerPage, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    got = CLIENT.post(f"{page.address}page/token", content=body, headers=headers)
    assert (got.status_code, got.json()["error"]["type"]) == (400, "invalid_params")


def test_a_long_body_is_refused_before_it_is_read(page: OwnerPage) -> None:
    headers = {"Content-Type": "application/json"}
    body = json.dumps({"code": "x" * 5000}).encode()
    assert CLIENT.post(f"{page.address}page/token", content=body, headers=headers).status_code == 413


ATTACKS = [
    {"Host": "evil.example"},
    {"Host": "127.0.0.1"},
    {"Host": "127.0.0.1:1"},
    {"Host": "localhost.evil.example:PORT"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "https://127.0.0.1:PORT"},
    {"Origin": "http://127.0.0.1.evil.example:PORT"},
    {"Host": "evil.example", "Origin": "http://evil.example"},
]
# What a form or a simple request of another page can say.
FORM_TYPES = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""]


def test_every_route_refuses_every_other_host_and_origin_and_every_bad_token(running: Daemon, page: OwnerPage) -> None:
    """Host x Origin x token x method x type. The right one of each comes last: then it works, and not before."""
    port = str(urlsplit(page.address).port)
    code = running.call("http.open", scopes=["list"])["code"]
    trade_body = json.dumps({"code": code}).encode()
    json_type = {"Content-Type": "application/json"}
    own = {"Origin": page.address.rstrip("/")}
    routes = [("GET", "", b""), ("GET", "client.js", b""), ("GET", "events", b""), ("POST", "page/close", b"{}")]
    wrong = []

    def ask(method: str, path: str, body: bytes, wanted: set[int], **headers: str) -> None:
        sent = {name: value.replace("PORT", port) for name, value in headers.items()}
        with CLIENT.stream(method, page.address + path, content=body or None, headers=sent) as got:
            if got.status_code not in wanted or "access-control-allow-origin" in got.headers:
                wrong.append((method, path, headers, got.status_code))

    for attack in ATTACKS:
        for method, path, body in [*routes, ("POST", "page/token", trade_body)]:
            ask(method, path, body, {403}, **json_type, **page.headers, **attack)
    for token in ("", "Bearer", "Bearer x", f"Basic {page.token}", f"Bearer {page.token}x", f"Bearer {code}"):
        for method, path, body in routes[2:]:
            ask(method, path, body, {401}, **json_type, **own, **({"Authorization": token} if token else {}))
    for kind in FORM_TYPES:
        for path, body in (("page/token", trade_body), ("page/close", b"{}")):
            ask("POST", path, body, {415}, **{"Content-Type": kind}, **page.headers, **own)
    for method in ("GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"):
        for path in ("page/token", "page/close"):
            ask(method, path, b"", {405}, **json_type, **page.headers, **own)
    for path in ("page/token", "page/close", "events"):
        method = "GET" if path == "events" else "POST"
        ask(method, f"{path}?token={page.token}", b"{}", {400}, **json_type, **page.headers)
    # An owner's page in another tab has the right of everything else, so all of this has left the code as it was.
    ask("POST", "page/token", trade_body, {200}, **json_type, **own)
    ask("GET", "events", b"", {200}, **page.headers, **own)
    assert wrong == []


def test_a_page_sees_every_session_and_does_only_what_it_was_opened_for(running: Daemon) -> None:
    running.reply("agent:main:test:seen", "hello")
    reader, writer = open_page(running), open_page(running, "list", "read", "send", "spawn")
    for page in (reader, writer):
        assert "agent:main:test:seen" in [row["key"] for row in page.call("sessions_list")["result"]["sessions"]]
        history = page.call("sessions_history", sessionKey="agent:main:test:seen")["result"]
        assert [message["role"] for message in history["messages"]] == ["user", "assistant"]
    sent = {"sessionKey": "agent:main:test:seen", "message": "from the page"}
    assert reader.call("chat.send", **sent)["error"]["data"]["type"] == "forbidden"
    assert writer.call("chat.send", **sent)["result"]["status"] == "accepted"
    running.wait_for(lambda: "from the page" in str(running.records("agent:main:test:seen")), "no message")
    # The page's words are the owner's own: no provenance says otherwise.
    assert "provenance" not in str(running.records("agent:main:test:seen"))
    for method, params in (
        ("tokens.mint", {"scopes": ["admin"]}),
        ("http.open", {"scopes": ["admin"]}),
        ("sessions.delete", {"key": "agent:main:test:seen"}),
        ("daemon.status", {}),
    ):
        assert writer.call(method, **params)["error"]["data"]["type"] == "forbidden", method
    assert open_page(running, "admin").call("http.open", scopes=["list"])["error"]["data"]["type"] == "forbidden"


def test_changes_of_all_sessions_come_as_rows_without_what_was_said(running: Daemon) -> None:
    page = open_page(running)
    with page.events() as events:
        assert next(events) == ("ready", {})
        for name in ("one", "two"):
            running.call("chat.send", sessionKey=f"agent:main:test:{name}", message="UNSEEN words")
        seen: dict[str, list[str]] = {}
        last: dict[str, str] = {}
        for name, data in events:
            assert name == "changed"
            last[data["sessionKey"]] = data["row"].get("lastMessagePreview", "")
            seen.setdefault(data["sessionKey"], []).append(data["phase"])
            assert data["row"]["sessionId"] and "message" not in data
            if [phases[-1:] for phases in seen.values()] == [["end"], ["end"]]:
                break
        assert set(seen) == {"agent:main:test:one", "agent:main:test:two"}
    # What was said last, as in the list of sessions: for who may read it.
    assert set(last.values()) == {"UNSEEN words"}
    lister = open_page(running, "list")
    with lister.events() as events:
        next(events)
        running.call("sessions.patch", key="agent:main:test:one", label="named")
        for _, data in events:
            assert "UNSEEN" not in str(data)
            if data["row"].get("label") == "named":
                break
        else:
            pytest.fail("the stream ended without the new label")


def test_that_another_machine_is_reached_or_away_comes_to_the_page(running: Daemon) -> None:
    page = open_page(running, "list")
    with page.events() as events, running.connect() as link:
        next(events)
        link.call("machines.report", machine="mars", present=True)
        assert next(events) == ("machine.changed", {"machine": "mars"})
        link.close()
        name, data = next(events)
        assert (name, data.keys()) == ("machine.changed", {"machine", "awaySince"})


def test_a_page_ends_itself_and_its_streams_and_no_other_page(running: Daemon) -> None:
    page, other = open_page(running), open_page(running)
    with page.events() as events, other.events() as others:
        assert [next(events), next(others)] == [("ready", {})] * 2
        got = CLIENT.post(f"{page.address}page/close", json={}, headers=page.headers)
        assert (got.status_code, got.json()) == (200, {"ok": True})
        assert list(events) == []
        assert page.call("ping")["error"]["type"] == "unauthenticated"
        running.reply("agent:main:test:after", "hello")
        assert next(others)[0] == "changed"
    minted = running.call("tokens.mint", scopes=["admin"])["token"]
    headers = {"Authorization": f"Bearer {minted}"}
    got = CLIENT.post(f"{page.address}page/close", json={}, headers=headers)
    assert (got.status_code, got.json()["error"]["type"]) == (403, "forbidden")
