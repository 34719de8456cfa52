"""The `[link]` table: what machines and server may be, and what the errors for bad ones say."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.config.link import MAX_PEERS, ExportRule, LinkConfig, PeerConfig
from sessiond.config.settings import Config, parse, to_document
from sessiond.errors import ConfigError

OWN = '[link]\nname = "lap"\nserver = "nats://127.0.0.1:4222"\n'
KEY = "AAAABBBBCCCCDDDDEEEE"
PEER = f'[[link.peers]]\nname = "mars"\nkey = "{KEY}"\n'


def peers(count: int) -> str:
    return OWN + "".join(f'[[link.peers]]\nname = "m{number}"\nkey = "{KEY}{number}"\n' for number in range(count))


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    return str(caught.value)


def test_a_peer_gets_nothing_and_may_do_nothing_by_default() -> None:
    config = parse(OWN + PEER)
    assert config.link == LinkConfig(
        name="lap", server="nats://127.0.0.1:4222", peers=(PeerConfig(name="mars", key=KEY),)
    )
    peer = config.machine("mars")
    assert peer is not None
    assert (peer.export, peer.send, peer.spawn) == ((), (), ())
    assert (config.link.encrypt, config.link.stream) == (False, "X")
    assert config.machine("venus") is None
    assert Config().link == LinkConfig()


def test_each_key_can_be_set() -> None:
    text = (
        '[link]\nname = "lap"\nserver = "tls://nats.example:4222"\nca = "~/ca.pem"\ncertificate = "/srv/lap.pem"\n'
        'key = "/srv/lap.key"\nnkeySeed = "/srv/lap.nk"\nencrypt = true\nstream = "machines"\n'
        f'{PEER}export = [{{agents = ["ops"], labels = ["pub-*"], cwd = ["/srv/*"]}}]\nsend = ["agent:ops:*"]\n'
        'spawn = ["ops"]\n'
    )
    link = parse(text).link
    assert link.ca == Path.home() / "ca.pem"
    assert link.peers[0].export == (ExportRule(agents=("ops",), labels=("pub-*",), cwd=("/srv/*",)),)
    assert to_document(parse(text))["link"] == tomllib.loads(text)["link"] | {"ca": str(Path.home() / "ca.pem")}


def test_each_machine_is_an_agent_behind_the_others_which_inherits_no_model_time_limit_or_sandbox() -> None:
    defaults = (
        '[agents.defaults]\nmodel = "small"\nrunTimeoutSeconds = 9\nsandbox.mode = "all"\nworkspace = "/srv/w"\n'
        '[agents.defaults.subagents]\nmodel = "tiny"\nrunTimeoutSeconds = 5\nthinking = "low"\n'
        "maxChildrenPerAgent = 2\n"
    )
    config = parse(defaults + OWN + PEER)
    assert [agent.id for agent in config.agents.list] == ["main", "mars"]
    assert config.default_agent() == "main"
    machine = config.agent("mars")
    assert machine is not None
    assert (machine.runtime.type, machine.model, machine.workspace, machine.sandbox.mode) == (
        "attached",
        None,
        None,
        "off",
    )
    subagents = machine.subagents
    assert (subagents.model, subagents.thinking, subagents.run_timeout_seconds) == (None, None, 0)
    assert (subagents.announce, subagents.max_children_per_agent) == ("reply", 2)
    # What is shown is a configuration again: the agent is not in it, the machine is.
    shown = to_document(config)
    assert [agent["id"] for agent in shown["agents"]["list"]] == ["main"]
    assert [peer["name"] for peer in shown["link"]["peers"]] == ["mars"]


@check_each(
    ("text", "error"),
    [
        (PEER, '1: link.peers[0] needs link.name as well, like name = "lap"'),
        ('[link]\nname = "lap"\n' + PEER, "3: link.peers[0] needs link.server as well, like server ="),
        (OWN + PEER + PEER, '8: link.peers[1].name is "mars" for a second time; every machine has its own name'),
        (OWN + PEER.replace("mars", "lap"), '5: link.peers[0].name is "lap", which is the name of this machine'),
        (OWN + PEER.replace("mars", "main"), '5: link.peers[0].name is "main", which is an agent here;'),
        (
            f'[[agents.list]]\nid = "mars"\nruntime.type = "echo"\n{OWN}{PEER}',
            '8: link.peers[0].name is "mars", which is an agent here;',
        ),
        (OWN + PEER + PEER.replace("mars", "venus"), '9: link.peers[1].key is the key of "mars" already'),
        (OWN + PEER.replace("mars", "Mars"), "5: link.peers[0].name must be a name of a-z, 0-9 and -, at most 32 long"),
        (OWN + PEER.replace("mars", "m_1"), "5: link.peers[0].name must be a name of a-z"),
        (
            OWN + PEER.replace(KEY, "short"),
            '6: link.peers[0].key must be the line that "sessiond link identity" prints',
        ),
        (OWN + PEER + "export = [{}]", "7: link.peers[0].export[0] has no field that must match; to export all"),
        (OWN + PEER + "export = [{agents = []}]", "7: link.peers[0].export[0] has no field that must match"),
        (OWN + PEER + "sends = []", "7: link.peers[0].sends is not a known key; did you mean link.peers[0].send?"),
        (OWN + "[[link.peers]]\nname = 'x'", "4: link.peers[0] needs key, which must be the line that"),
        ('[link]\nserver = "http://x:1"', "2: link.server must be the address of a NATS server like"),
        ('[link]\nserver = "nats://user:secret@x"', "2: link.server must be the address of a NATS server like"),
        ('[link]\nserver = "nats://x:70000"', "2: link.server must be the address of a NATS server"),
        ('[link]\nserver = "nats://x:0"', "2: link.server must be the address of a NATS server"),
        (OWN + 'ca = "/x"', '4: link.ca is for a server with TLS: link.server must begin with "tls://"'),
        (OWN.replace("nats:", "tls:") + 'certificate = "/x"', "4: link.certificate needs link.key beside it"),
        (OWN + 'key = "/x"', "4: link.key needs link.certificate beside it"),
        (OWN + 'nkeySeed = "x"', '4: link.nkeySeed must be an absolute path or begin with "~/", not "x"'),
        (OWN + 'stream = "a.b"', "4: link.stream must be a name of A-Z, a-z, 0-9, _ and -"),
        (OWN + "encrypt = 1", "4: link.encrypt must be true or false, not 1"),
    ],
)
def test_a_bad_table_is_refused_with_its_line_and_key(text: str, error: str) -> None:
    assert refusal(text).startswith(f"config.toml:{error}")


def test_no_refusal_repeats_a_password() -> None:
    assert "secret" not in refusal('[link]\nserver = "nats://user:secret@x"')


def test_there_may_be_so_many_peers_and_no_more() -> None:
    assert len(parse(peers(MAX_PEERS)).link.peers) == MAX_PEERS
    assert "there may be 128 [[link.peers]] tables" in refusal(peers(MAX_PEERS + 1))


@given(st.text(max_size=40))
def test_a_server_is_an_address_or_refused_with_a_sentence(text: str) -> None:
    quoted = '"' + "".join(f"\\U{ord(sign):08x}" for sign in text) + '"'
    try:
        link = parse(f"[link]\nserver = {quoted}").link
    except ConfigError as refused:
        sentence = str(refused)
    else:
        sentence = ""
        assert link.server is not None
        assert link.server.startswith(("nats://", "tls://"))
    assert not sentence or "link.server must be" in sentence
