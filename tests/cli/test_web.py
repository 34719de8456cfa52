"""`sessiond web` with the real daemon: what the browser is started with, and what the page may do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.owner_page import trade
from support.real_daemon import Daemon
from support.rows import check_each

pytestmark = pytest.mark.system

ALL = ["list", "read", "send", "spawn", "answer", "admin"]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    made = Daemon(tmp_path_factory.mktemp("web")).start()
    yield made
    made.stop()


def scopes_of(url: str) -> list[str]:
    """Trade the code of an address."""
    code = urlsplit(url).fragment
    scopes: list[str] = trade(url.partition("#")[0], code).json()["scopes"]
    return scopes


def test_the_browser_gets_an_address_that_works_once(started: Daemon, tmp_path: Path) -> None:
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}\n')
    browser.chmod(0o755)
    done = started.cli("web", env={**started.environ, "BROWSER": str(browser)})
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    url = opened.read_text()
    # The code is for the browser: no terminal keeps it in its history.
    assert urlsplit(url).fragment not in done.stderr and url.partition("#")[0] in done.stderr
    assert scopes_of(url) == ["list", "read"]
    assert trade(url.partition("#")[0], urlsplit(url).fragment).status_code == 401


@check_each(
    ("words", "scopes"), [((), ALL[:2]), (("--write",), ALL[:5]), (("--admin",), ALL), (("--admin", "--write"), ALL)]
)
def test_the_page_reads_unless_it_is_given_more(started: Daemon, words: tuple[str, ...], scopes: list[str]) -> None:
    done = started.cli("web", "--print", *words)
    [url] = done.stdout.splitlines()
    assert (done.returncode, scopes_of(url)) == (0, scopes)
    assert "once, within 30 seconds" in done.stderr and f"ssh -L {urlsplit(url).port}:127.0.0.1:" in done.stderr


def test_without_a_screen_the_address_is_printed(started: Daemon) -> None:
    done = started.cli("web")
    assert scopes_of(done.stdout.strip()) == ["list", "read"]
    assert "no browser here" in done.stderr


def test_a_browser_that_does_not_start_is_said_and_the_address_printed(started: Daemon) -> None:
    done = started.cli("web", env={**started.environ, "BROWSER": "/nonexistent/browser"})
    assert (done.returncode, scopes_of(done.stdout.strip())) == (0, ["list", "read"])


def test_json_has_the_address_and_its_parts(started: Daemon) -> None:
    made = json.loads(started.cli("web", "--json", "--ttl", "5m").stdout)
    assert made["url"] == f"{made['address']}#{made['code']}"
    got = trade(made["address"], made["code"]).json()
    [row] = [row for row in started.call("tokens.list")["tokens"] if row["id"] == got["id"]]
    assert row["expiresAt"] - row["issuedAt"] == 300_000


def test_close_ends_all_pages_and_token_list_shows_them_as_pages(started: Daemon) -> None:
    started.call("http.close")
    scopes_of(started.cli("web", "--print").stdout.strip())
    assert " page" in started.cli("token", "list").stdout
    done = started.cli("web", "--close")
    assert (done.returncode, done.stdout) == (0, "1 page ended; the port is closed\n")
    assert started.cli("web", "--close").stdout == "no page was open\n"
    assert json.loads(started.cli("web", "--close", "--json").stdout) == {"revoked": 0, "closed": False}


def test_a_page_for_no_time_and_one_of_a_run_are_refused_in_a_sentence(started: Daemon, tmp_path: Path) -> None:
    done = started.cli("web", "--ttl", "0")
    assert (done.returncode, "second at least" in done.stderr) == (2, True)
    (tmp_path / "token").write_text(started.call("tokens.mint", scopes=["admin"])["token"])
    done = started.cli("web", "--print", env={**started.environ, "SESSIOND_TOKEN_FILE": str(tmp_path / "token")})
    assert (done.returncode, "for the owner" in done.stderr) == (4, True)
