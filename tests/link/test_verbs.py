"""`sessiond link identity`, `peer`, `admin` and `check`, as they are typed: from nothing to machines on a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, get_args

import pytest
from support.nats_server import Mode, NatsServer, is_old, make_certificates
from support.sampling import pick, spread

from sessiond import cli
from sessiond.config.settings import parse
from sessiond.link.envelope import Reason
from sessiond.link.identity import new_identity
from sessiond.link.shares import EVERYBODY, mark
from sessiond.link.status import LinkStatus, StatusFile

# Of an older one each check says what it lacks.
recent = pytest.mark.skipif(is_old(), reason="SESSIOND_NATS_SERVER is older than 2.10")
LINE = new_identity().public.text


class Said(NamedTuple):
    status: int
    out: str
    err: str


Sessiond = Callable[..., Said]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store and a configuration of the test's own."""
    (tmp_path / "store" / "keys").mkdir(parents=True)
    (tmp_path / "config.toml").touch(0o600)
    monkeypatch.setenv("SESSIOND_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("SESSIOND_CONFIG", str(tmp_path / "config.toml"))
    return tmp_path


@pytest.fixture
def link(home: Path, capsys: pytest.CaptureFixture[str]) -> Sessiond:
    def run(*words: str, config: str | None = None) -> Said:
        if config is not None:
            (home / "config.toml").write_text(config)
        return Said(cli.run(["link", *words]), *capsys.readouterr())

    return run


def test_the_identity_is_printed_with_its_fingerprint(link: Sessiond, home: Path) -> None:
    said = link("identity")
    assert (said.status, said.out.startswith("sdl1-"), said.out.count("\n")) == (0, True, 1)
    found = json.loads(link("identity", "--json").out)
    assert found["identity"] == said.out.strip()
    assert f"fingerprint  {found['fingerprint']}" in said.err
    assert link("identity", "--store", str(home / "none")).status == 1


def test_the_nkey_of_a_machine_is_made_once_for_the_owner_alone(link: Sessiond, home: Path) -> None:
    refused = link("identity", "--nkey")
    assert (refused.status, "nkeySeed = " in refused.err) == (78, True)
    said = link("identity", "--nkey", config=f'[link]\nnkeySeed = "{home}/nkeys/lap.nk"\n')
    assert (said.status, said.out[:1], len(said.out), "made now" in said.err) == (0, "U", 57, True)
    seed = home / "nkeys" / "lap.nk"
    assert (seed.stat().st_mode & 0o777, seed.read_text()[:2]) == (0o600, "SU")
    again = link("identity", "--nkey")
    assert (again.out, "made now" in again.err) == (said.out, False)
    seed.write_text("spoiled")
    assert "has no line with the seed of a user" in link("identity", "--nkey").err
    assert seed.read_text() == "spoiled"
    refused = link("identity", "--nkey", config=f'[link]\nnkeySeed = "{seed}/lap.nk"\n')
    assert (refused.status, refused.out, "cannot be made for the seed: " in refused.err) == (1, "", True)
    refused = link("admin", "--machine", "lap", "--nkey-seed", str(seed / "admin.nk"))
    assert (refused.status, refused.out, "cannot be made for the seed: " in refused.err) == (1, "", True)


def test_the_lines_for_a_peer_are_what_the_configuration_takes(link: Sessiond) -> None:
    head = '[link]\nname = "lap"\nserver = "nats://127.0.0.1:4222"\n'
    added = link("peer", "add", "mars", LINE, config=head)
    assert added.status == 0
    (peer,) = parse(head + added.out).link.peers
    assert (peer.name, peer.key, peer.export, peer.send, peer.spawn) == ("mars", LINE, (), (), ())
    commented = parse(head + added.out.replace("# export", "export").replace("# send", "send")).link.peers[0]
    assert commented.export and commented.send
    listed = link("peer", config=head + added.out)
    fingerprint = json.loads(link("peer", "--json").out)["peers"][0]["fingerprint"]
    assert listed.out == f"mars         {fingerprint}\n"
    assert f"fingerprint  {fingerprint}" in added.err
    assert "compare it with what" in added.err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("MARS", LINE), "'MARS' is no name of a machine"),
        (("lap", LINE), "lap is the name of this machine"),
        (("mars", LINE[:-1]), 'the key of mars is not what "sessiond link identity" prints there'),
        (("moon", LINE), "the configuration has moon already, with this key"),
        (("moon", new_identity().public.text), "the configuration has moon with another key"),
    ],
)
def test_a_peer_that_cannot_be_added_is_refused(link: Sessiond, words: tuple[str, str], why: str) -> None:
    known = f'[[link.peers]]\nname = "moon"\nkey = "{LINE}"\n'
    said = link("peer", "add", *words, config=f'[link]\nname = "lap"\nserver = "nats://localhost:1"\n{known}')
    assert (said.status in (1, 2), said.out, why in said.err) == (True, "", True)


def test_the_own_line_is_no_other_machines(link: Sessiond) -> None:
    own = link("identity").out.strip()
    said = link("peer", "add", "mars", own)
    assert (said.status, "that is the identity of this machine" in said.err) == (2, True)


def config_of(server: NatsServer, name: str = "lap", *peers: str) -> str:
    lines = [f'[[link.peers]]\nname = "{peer}"\nkey = "{new_identity().public.text}"\n' for peer in peers or ("mars",)]
    return server.link_table(name) + "".join(lines)


def access(server: NatsServer) -> list[str]:
    folder = server.folder
    if server.mode == "tls":
        return ["--certificate", str(folder / "admin.pem"), "--key", str(folder / "admin.key")]
    return ["--nkey-seed", str(folder / "admin.nk")] if server.mode == "nkeys" else ["--admin", "admin"]


@pytest.mark.parametrize("mode", pick(["open", "tls", "nkeys"], __name__))
@recent
def test_a_server_is_set_up_and_checked(nats_server: type[NatsServer], link: Sessiond, mode: Mode) -> None:
    server = nats_server(mode).start()
    before = link("check", config=config_of(server))
    assert (before.status, before.out.count("is not there" if mode == "open" else "error")) == (1, 5 + (mode == "open"))
    assert "sessiond link admin --apply" in before.out
    made = link("admin", "--apply", *access(server))
    assert (made.status, made.out.count("made"), made.err) == (0, 11, "")
    again = json.loads(link("admin", "--apply", "--json", *access(server)).out)
    assert {step["done"] for step in again["steps"]} == {"as it has to be"}
    after = link("check", "--json", "--monitor", server.monitor)
    found = {one["thing"]: (one["level"], one["what"]) for one in json.loads(after.out)["findings"]}
    assert (after.status, {level for level, _ in found.values()}) == (0, {"ok"})
    assert found["sync_interval"] == ("ok", "always")
    assert found["consumers of lap"] == ("ok", "all 5 are as they have to be")
    assert found["mars"] == ("ok", "is not connected to the server now, or does not know this machine")
    assert found["stream X"][1].startswith("0 of 8590 MB, 0 messages")
    if mode == "tls":
        assert found["the server's certificate"][1].startswith("lasts until")
        assert found["link.certificate"][1].startswith("lasts until")
    admin = json.loads(link("check", "--json", *access(server)).out)["findings"]
    assert {"consumers of lap", "consumers of mars", "stream X"} <= {one["thing"] for one in admin}
    assert {one["level"] for one in admin} == {"ok"}


@recent
@pytest.mark.parametrize("mode", pick(["tls", "nkeys"], __name__))
def test_a_machine_sees_less_than_the_administrator_and_says_so(
    nats_server: type[NatsServer], link: Sessiond, mode: Mode
) -> None:
    server = nats_server(mode).start()
    link("admin", "--apply", *access(server), config=config_of(server))
    found = {one["thing"]: one for one in json.loads(link("check", "--json").out)["findings"]}
    assert found["stream X"]["what"] == "its limits cannot be seen by this machine"
    assert found["sync_interval"]["what"] == "cannot be seen from here"
    assert link("check", "--json").status == 0
    stranger = link("check", config=config_of(server, "lap", "mars", "moon"))
    assert (stranger.status, "moon: this machine may not ask it" in stranger.out) == (1, True)


@recent
def test_what_a_check_finds_of_a_server_that_was_set_up_otherwise(
    nats_server: type[NatsServer], link: Sessiond
) -> None:
    server = nats_server()
    server.replacements = {
        "sync_interval: always": "sync_interval: 90s",
        "jetstream {": "max_payload: 65536\njetstream {",
    }
    server.start()
    link("admin", "--apply", "--max-bytes", "1k", "--admin", "admin", config=config_of(server))
    said = link("check", "--monitor", server.monitor)
    assert said.status == 1
    assert "sync_interval: 90 seconds, not always: a power cut on the server loses" in said.out
    assert "max_payload: the server takes 65536 bytes in a message, the link sends up to 1000000" in said.out
    nowhere = link("check", "--monitor", "http://127.0.0.1:1")
    assert "monitoring: the monitoring port http://127.0.0.1:1 is not reachable" in nowhere.out
    assert "is no address of a monitoring port" in link("check", "--monitor", "file:///etc/passwd").out
    clients = server.url.replace("nats://", "http://")
    said = link("check", "--monitor", clients)
    assert f"monitoring: {clients} does not speak HTTP: the monitoring port is" in said.out


@recent
def test_certificates_that_end_are_told_before_they_do(nats_server: type[NatsServer], link: Sessiond) -> None:
    server = nats_server("tls")
    make_certificates(server.folder, server.host, ("admin", *server.machines), days=20)
    server.start()
    said = link("check", config=config_of(server))
    assert said.out.count("warning") == 2
    assert "link.certificate: ends in 19 days" in said.out
    assert "the server's certificate: ends in 19 days" in said.out
    server.stop()
    make_certificates(server.folder, server.host, ("admin", *server.machines), days=-1)
    server.start()
    ended = link("check")
    assert (ended.status, "verified: certificate has expired" in ended.out) == (1, True)
    assert "link.certificate: has ended on" in ended.out


@pytest.mark.skipif(not is_old(), reason="SESSIOND_NATS_SERVER names no server before 2.10")
def test_an_older_server_is_named(nats_server: type[NatsServer], link: Sessiond) -> None:
    server = nats_server("tls").start()
    link("admin", "--apply", *access(server), config=config_of(server))
    said = link("check")
    assert (said.status, "cannot be told to write each message to the disk" in said.out) == (0, True)


def test_a_server_without_jetstream_and_one_that_is_away_are_said(
    nats_server: type[NatsServer], link: Sessiond
) -> None:
    server = nats_server()
    configuration = server.configuration()
    begin = configuration.index("jetstream {")
    server.replacements = {configuration[begin : configuration.index("}", begin) + 1]: ""}
    server.start()
    said = link("check", config=config_of(server))
    assert (said.status, "jetstream: switched off" in said.out) == (1, True)
    server.stop()
    away = link("check")
    assert (away.status, "nothing listens there; is nats-server running?" in away.out) == (1, True)


def test_the_printed_configuration_is_for_the_machines_of_the_file_or_those_named(
    nats_server: type[NatsServer], link: Sessiond, home: Path
) -> None:
    certified, keyed = nats_server("tls"), nats_server("nkeys")
    certified.port, keyed.port = 4222, 4300
    tls = link("admin", config=config_of(certified, "lap", "mars", "moon"))
    assert [name in tls.out for name in ('user: "lap"', 'user: "mars"', 'user: "moon"', 'user: "admin"')] == [True] * 4
    assert ("verify_and_map" in tls.out, "openssl x509 -req" in tls.out) == (True, True)
    # The server's address is one of these here, for which a certificate with DNS: is refused.
    assert "where that is an address: IP:NAME, not DNS:NAME" in tls.out
    named = json.loads(link("admin", "--machine", "a", "--machine", "b", "--machine", "a", "--json").out)
    assert named["machines"] == ["a", "b"]
    seed = home / "admin.nk"
    nkeys = link("admin", "--nkey-seed", str(seed), config=config_of(keyed))
    assert ("THE-PUBLIC-NKEY-OF-mars" in nkeys.out, "NKEY-OF-admin" in nkeys.out, "tls {" in nkeys.out) == (
        True,
        False,
        False,
    )
    assert ("port: 4222\n" in tls.out, "port: 4300\n" in nkeys.out) == (True, True)
    assert seed.stat().st_mode & 0o777 == 0o600
    filled = link("admin", "--nkey-seed", str(seed), "--nkey", f"mars=U{'A' * 55}")
    assert (f'nkey: "U{"A" * 55}"' in filled.out, "THE-PUBLIC" in filled.out) == (True, False)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["admin", "--machine", "A"], "'A' is no name of a machine"),
        (["admin", "--machine", "a", "--nkey", "lap"], "that is no public nkey for 'lap'"),
        (["admin", "--machine", "a", "--nkey", "lap=SUAB"], "that is no public nkey for 'lap'"),
        (["admin", "--apply", "--machine", "a"], "no server is named"),
        (
            ["admin", "--apply", "--machine", "a", "--server", "nats://localhost:1", "--max-bytes", "x"],
            "no number of bytes",
        ),
        (["admin"], "say which machines there are"),
        (["check"], "no server is named"),
        (["check", "--server", "nats://localhost:65536"], "that is no address of a NATS server"),
        (["admin", "--machine", "a", "--server", "localhost"], "that is no address of a NATS server"),
        (["check", "--server", "nats://localhost:1"], "the configuration has no name for this machine"),
    ],
)
def test_a_wrong_call_says_what_to_write(link: Sessiond, words: list[str], why: str) -> None:
    said = link(*words)
    assert (said.status in (2, 78), said.out, why in said.err) == (True, "", True)
    assert said.err.count("\n") == 2


@pytest.mark.parametrize("words", spread([["check"], ["admin", "--machine", "lap"], ["run"]], 1))
def test_without_the_extra_the_package_that_is_missing_is_named(home: Path, words: list[str]) -> None:
    head = "import sys; sys.modules['nats'] = None; from sessiond import cli; cli.main(['link', *sys.argv[1:]])"
    done = subprocess.run([sys.executable, "-c", head, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "sessiond: sessiond link needs the package nats-py, which is not installed beside sessiond\n"
        "  in its clone: just install --link, or into the environment that it is in: pip install '.[link]'\n",
    )


def test_without_the_extra_a_machine_has_an_identity(home: Path) -> None:
    head = "import sys; sys.modules['nats'] = None; from sessiond import cli; cli.main(['link', 'identity'])"
    done = subprocess.run([sys.executable, "-c", head], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout[:5]) == (0, "sdl1-")


def test_a_mark_is_taken_back_also_of_a_session_or_for_a_machine_that_is_not_there_any_more(
    link: Sessiond, home: Path
) -> None:
    deleted = "agent:ops:deleted"
    for machine in ("mars", "moon"):
        mark(home / "store", deleted, machine)
    said = link("unshare", deleted, "--to", "mars")
    assert (said.status, said.out) == (0, f"{deleted} is shared no more with mars\n")
    assert link("share").out == f"{deleted}  moon\n"
    assert link("unshare", deleted).status == 0
    assert link("share").out == ""


def test_what_goes_to_all_machines_is_not_said_to_be_kept_from_one(link: Sessiond, home: Path) -> None:
    for machine in ("mars", EVERYBODY):
        mark(home / "store", "agent:ops:main", machine)
    for machine in ("mars", "moon"):
        config = f'[link]\nname = "lap"\nserver = "nats://localhost:1"\n[[link.peers]]\nname = "moon"\nkey = "{LINE}"\n'
        said = link("unshare", "agent:ops:main", "--to", machine, config=config)
        assert (said.status, said.out) == (1, "")
        assert f"agent:ops:main goes to all machines, and so to {machine}" in said.err
    assert link("share").out == "agent:ops:main  all machines\n"


def test_damaged_marks_are_said(link: Sessiond, home: Path) -> None:
    (home / "store" / "link").mkdir()
    (home / "store" / "link" / "shares.json").write_text("x")
    said = link("share")
    assert (said.status, said.out, "is damaged; remove it" in said.err, "Traceback" in said.err) == (1, "", True, False)


def test_status_shows_the_words_of_other_machines_without_their_control_of_the_terminal(
    link: Sessiond, home: Path
) -> None:
    (home / "store" / "link").mkdir()
    letter = "lap c\x1b]0;owned\x07\n\u202e: no \x9b31m room"
    StatusFile(home / "store").write(
        LinkStatus(
            name="mars", server="127.0.0.1:4222", trouble="a\x1b[2Jb", dead_letters=[letter], limits={"lap": "full"}
        )
    )
    said = link("status")
    assert said.status == 1 and said.out.replace("\n", "").isprintable() and said.out.count("\n") == 4
    assert r"given up     lap c\x1b]0;owned\x07\x0a\u202e: no \x9b31m room" in said.out
    assert "limit        lap: full\n" in said.out
    as_json = link("status", "--json").out
    assert as_json.removesuffix("\n").isprintable() and json.loads(as_json)["deadLetters"] == [letter]


@pytest.mark.parametrize("name", ["status.json", "link.lock"])
def test_status_does_not_wait_for_what_is_no_file(link: Sessiond, home: Path, name: str) -> None:
    (home / "store" / "link").mkdir()
    os.mkfifo(home / "store" / "link" / name)
    said = link("status")
    assert said.status == 1 and "no link has run on the store" in said.err


def test_a_status_that_was_not_written_is_written_when_it_can_be(home: Path) -> None:
    path = home / "store" / "link" / "status.json"
    path.mkdir(parents=True)
    file, status = StatusFile(home / "store"), LinkStatus(name="mars", server="127.0.0.1:4222")
    assert (file.write(status), file.is_written) == (True, False)
    path.rmdir()
    assert (file.write(status), file.is_written) == (False, True)
    assert json.loads(path.read_text())["name"] == "mars"
    path.unlink()
    assert not file.write(status) and not path.exists(), "once is enough"


def test_status_says_in_words_what_was_wrong_with_dropped_messages(link: Sessiond, home: Path) -> None:
    (home / "store" / "link").mkdir()
    reasons: tuple[str, ...] = get_args(Reason)
    counts = {reason: count for count, reason in enumerate(reasons, 1)}
    StatusFile(home / "store").write(LinkStatus(name="mars", server="s:4222", dropped={**counts, "of later": 99}))
    said = [line for line in link("status").out.splitlines() if line.startswith("dropped")]
    assert "not signed with the key that [[link.peers]] has for its sender" in said[reasons.index("signature")]
    assert said[-1] == "dropped      99 messages: of later", "a link of another version has written it"
    assert all(len(line.partition(": ")[2].split()) > 2 for line in said[:-1]), said
    assert json.loads(link("status", "--json").out)["dropped"] == {**counts, "of later": 99}


def test_nothing_of_the_link_is_imported_for_its_help() -> None:
    code = "import sys, sessiond.cli.link; print([name for name in sys.modules if name.startswith(PARTS)])"
    code = code.replace("PARTS", "('nats', 'sessiond.link', 'asyncio')")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
