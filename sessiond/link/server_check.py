"""What is wrong with the server for the link, and what cannot be seen from here, in words. Changes nothing.

With the credentials of a machine, of the administrator, and what the server's monitoring port tells, where it has one.
Source: machines.md, "The server".
"""

from __future__ import annotations

import asyncio
import datetime as dt
import http.client
import json
import re
import ssl
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import nats.errors
from cryptography import x509
from nats.js import api

from sessiond.errors import pluralize, quote, reason_of
from sessiond.link.connecting import ServerSettings, connect_once, peer_certificate, server_facts
from sessiond.link.envelope import MAX_MESSAGE_BYTES
from sessiond.link.failures import LinkError
from sessiond.link.server_client import BadAnswerError, ServerClient, check_answer
from sessiond.link.server_setup import differences, wanted_consumer, wanted_stream
from sessiond.link.subjects import KINDS, Kind, ask_subject, consumer_name

MAKE_THEM: Final = 'the administrator makes it: "sessiond link admin --apply"'
# From 2.10 on a server can be told to write each message to the disk.
RECOMMENDED: Final = (2, 10)
# Beside the message the server counts its headers.
_HEADER_BYTES: Final = 1024
_ANSWER_S: Final = 3.0
# A machine that is there does not answer what is no question. That nobody is there the server says at once.
_PEER_S: Final = 1.0
# Certificates and deadlines tolerate less than a clock that is minutes wrong.
_CLOCK_S: Final = 10.0
_SOON_DAYS: Final = 30
_NEARLY_FULL: Final = 0.8
_LOOPBACK: Final = ("127.", "localhost", "[::1]", "::1")


class ServerFinding(msgspec.Struct, frozen=True):
    """One thing that was looked at. `hint` says what to do about it."""

    level: Literal["ok", "warn", "error"]
    thing: str
    what: str
    hint: str = ""


class Monitoring(msgspec.Struct, frozen=True):
    """What the monitoring port says of JetStream: its configuration, and the stream where there is one."""

    config: dict[str, Any]
    stream: dict[str, Any] | None


async def check(
    settings: ServerSettings,
    peers: Sequence[str],
    monitoring: Monitoring | None = None,
    *,
    machines: Sequence[str] = (),
) -> list[ServerFinding]:
    """All findings, in the order in which one thing needs the other. `machines`: whose consumers to look at, where it
    is the administrator who looks.
    """
    found: list[ServerFinding] = []
    try:
        found += check_certificates(settings, time.time())
        client = await connect_once(settings)
    except LinkError as error:
        return [*found, ServerFinding("error", "server", error.message)]
    try:
        with check_answer():
            await _look_around(found, client, settings, peers, monitoring=monitoring, machines=machines)
    except BadAnswerError as error:
        found.append(ServerFinding("error", "server", f"{settings.address}: {error}", "see what listens there"))
    except (nats.errors.Error, OSError) as error:
        found.append(ServerFinding("error", "server", f"the connection was lost: {quote(str(error))}", "try again"))
    finally:
        await client.end()
    return found


async def _look_around(
    found: list[ServerFinding],
    client: ServerClient,
    settings: ServerSettings,
    peers: Sequence[str],
    *,
    monitoring: Monitoring | None,
    machines: Sequence[str],
) -> None:
    found += check_facts(settings, server_facts(client))
    found += check_server_certificate(settings, peer_certificate(client), time.time())
    if server_facts(client).get("jetstream"):
        for machine in machines or [settings.name]:
            found += await _check_consumers(client, settings.stream, machine)
        found += await _check_stream(client, settings, monitoring)
        found += check_sync(server_facts(client), monitoring)
    found += await asyncio.gather(*(_check_peer(client, settings.name, peer) for peer in peers))


def read_monitoring(url: str, stream: str) -> Monitoring:
    """What the port says. LinkError where it cannot be read."""
    asked = f"{url.rstrip('/')}/jsz?streams=true&config=true"
    if not re.match(r"https?://", asked):
        raise LinkError(f'{quote(url)} is no address of a monitoring port like "http://127.0.0.1:8222"')
    try:
        with urllib.request.urlopen(asked, timeout=_ANSWER_S) as answer:  # noqa: S310 - http, as was just seen
            told = json.loads(answer.read(64 << 20))
        accounts = told.get("account_details") or []
        streams = [one for account in accounts for one in account.get("stream_detail") or []]
        found = next((one for one in streams if one.get("name") == stream), None)
        return Monitoring(dict(told.get("config") or {}), found)
    except urllib.error.HTTPError as error:
        raise LinkError(f"the monitoring port {url} answers {error.code}; is it one of nats-server?") from None
    except OSError as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        why = reason_of(reason) if isinstance(reason, OSError) else str(reason)
        raise LinkError(f"the monitoring port {url} is not reachable: {why}") from None
    except http.client.HTTPException:
        raise LinkError(
            f"{url} does not speak HTTP: the monitoring port is the number behind http in the server's configuration, "
            "as in http: 8222"
        ) from None
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise LinkError(f"the monitoring port {url} answers what no nats-server does") from None


def check_facts(settings: ServerSettings, facts: Mapping[str, Any]) -> Iterator[ServerFinding]:
    """Of what the server says of itself to everybody."""
    version = str(facts.get("version", "unknown"))
    if version_of(version) < RECOMMENDED:
        yield ServerFinding(
            "warn",
            "server",
            f"nats-server {version} cannot be told to write each message to the disk",
            "a power cut there may lose what it acknowledged; install 2.10 or later",
        )
    else:
        yield ServerFinding("ok", "server", f"nats-server {version} at {settings.address}")
    if not settings.uses_tls and not settings.address.startswith(_LOOPBACK):
        yield ServerFinding(
            "warn",
            "transport",
            "the connection is not encrypted: whoever is on the way reads it",
            "use tls:// with certificates, or encrypt = true in [link] of all machines",
        )
    if not facts.get("jetstream"):
        yield ServerFinding(
            "error",
            "jetstream",
            "switched off",
            'the server needs a block "jetstream": "sessiond link admin" prints it',
        )
    most = int(facts.get("max_payload") or 0)
    if most < MAX_MESSAGE_BYTES + _HEADER_BYTES:
        yield ServerFinding(
            "error",
            "max_payload",
            f"the server takes {most} bytes in a message, the link sends up to {MAX_MESSAGE_BYTES}",
            "remove max_payload from its configuration: 1 MiB is its own default",
        )


def version_of(text: str) -> tuple[int, int]:
    """The first two numbers of a version; the lowest for any other text."""
    found = re.match(r"(\d{1,6})\.(\d{1,6})", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def check_sync(facts: Mapping[str, Any], monitoring: Monitoring | None) -> Iterator[ServerFinding]:
    """Whether a message is on the disk when the server acknowledges it. Only the monitoring port says so."""
    if version_of(str(facts.get("version", ""))) < RECOMMENDED:
        return  # said already
    if monitoring is None:
        yield ServerFinding(
            "ok",
            "sync_interval",
            "cannot be seen from here",
            "it has to be always; to see it name the server's monitoring port: --monitor http://127.0.0.1:8222",
        )
    elif monitoring.config.get("sync_always"):
        yield ServerFinding("ok", "sync_interval", "always")
    else:
        seconds = int(monitoring.config.get("sync_interval") or 120_000_000_000) / 1e9
        yield ServerFinding(
            "warn",
            "sync_interval",
            f"{seconds:g} seconds, not always: a power cut on the server loses what it acknowledged in that time",
            "write sync_interval: always into its block jetstream; until then readers ask again, and commands are kept",
        )


async def _check_consumers(client: ServerClient, stream: str, machine: str) -> list[ServerFinding]:
    found: list[ServerFinding] = []
    clock_s: float | None = None
    for kind in KINDS:
        thing = f"consumer {consumer_name(machine, kind)}"
        before = time.time()
        answer = await _ask(client, f"$JS.API.CONSUMER.INFO.{stream}.{consumer_name(machine, kind)}")
        if isinstance(answer, str):
            found.append(ServerFinding("error", thing, answer, _hint_of(answer)))
            continue
        found.append(judge_consumer(machine, kind, answer))
        said = _time_of(answer.get("ts"))
        if said is not None:
            clock_s = said - (before + time.time()) / 2
    found += check_clock(clock_s)
    bad = [one for one in found if one.level != "ok"]
    return bad or [ServerFinding("ok", f"consumers of {machine}", f"all {len(KINDS)} are as they have to be")]


def judge_consumer(machine: str, kind: Kind, answer: Mapping[str, Any]) -> ServerFinding:
    """Of the server's answer about a consumer."""
    thing = f"consumer {consumer_name(machine, kind)}"
    if "error" in answer:
        return _refusal(thing, answer)
    left = differences(wanted_consumer(machine, kind), api.ConsumerConfig.from_response(dict(answer["config"])))
    if left:
        return ServerFinding("error", thing, f"not as it has to be: {'; '.join(left)}", MAKE_THEM)
    return ServerFinding("ok", thing, "as it has to be")


def check_clock(difference_s: float | None) -> Iterator[ServerFinding]:
    """`difference_s`: how far the server's clock is ahead; None where it is too old to say."""
    if difference_s is not None and abs(difference_s) > _CLOCK_S:
        way = "ahead of" if difference_s > 0 else "behind"
        yield ServerFinding(
            "warn",
            "clock",
            f"the server's clock is {abs(difference_s):.0f} seconds {way} this machine's",
            "set both by the network (NTP): certificates, deadlines and times in lists depend on them",
        )


async def _check_stream(
    client: ServerClient, settings: ServerSettings, monitoring: Monitoring | None
) -> list[ServerFinding]:
    asked = f"$JS.API.STREAM.INFO.{settings.stream}"
    answer = await _ask(client, asked)
    if isinstance(answer, str):
        if monitoring is None or monitoring.stream is None:
            hint = "it may not ask for it; check as the administrator, or name the monitoring port with --monitor"
            return [ServerFinding("ok", f"stream {settings.stream}", "its limits cannot be seen by this machine", hint)]
        answer = monitoring.stream
    elif "error" not in answer and _is_nearly_full(answer):
        # Not before: it is a line for each session and command.
        detailed = await _ask(client, asked, payload=b'{"subjects_filter": ">"}')
        answer = detailed if isinstance(detailed, dict) and "state" in detailed else answer
    return [*judge_stream(settings.stream, answer)]


def _is_nearly_full(answer: Mapping[str, Any]) -> bool:
    most = answer["config"].get("max_bytes") or -1
    return bool(most > 0 and answer["state"]["bytes"] >= _NEARLY_FULL * most)


def say_whose(subjects: Mapping[str, int]) -> str:
    """From whom and for whom most of the messages are, by how many there are of each subject; empty for none."""
    found: list[str] = []
    for word, at in (("from", 1), ("for", 2)):
        counts = Counter[str]()
        for subject, count in subjects.items():
            counts[quote(subject.split(".")[at]).strip("'") if subject.count(".") > at else "?"] += count
        found += [f"{count} of them are {word} {name}" for name, count in counts.most_common(1)]
    return ", ".join(found)


def judge_stream(name: str, answer: Mapping[str, Any]) -> Iterator[ServerFinding]:
    """Of what the server says about the stream. Its limits are the administrator's choice."""
    thing = f"stream {name}"
    if "error" in answer:
        yield _refusal(thing, answer)
        return
    found = api.StreamConfig.from_response(dict(answer["config"]))
    wanted = wanted_stream(name, found.max_bytes or 0, found.max_age or 0)
    wanted.duplicate_window = found.duplicate_window
    left = differences(wanted, found)
    if left:
        yield ServerFinding("error", thing, f"not as it has to be: {'; '.join(left)}", MAKE_THEM)
    used, most = int(answer["state"]["bytes"]), found.max_bytes or -1
    if most <= 0:
        hint = "give it one with --max-bytes, or it fills the disk, and then nothing is answered"
        yield ServerFinding("warn", thing, "has no limit in bytes", f"{MAKE_THEM}; {hint}")
    elif _is_nearly_full(answer):
        what = f"{used / 1e6:.0f} of {most / 1e6:.0f} MB are used; when it is full, nothing more is sent"
        whose = say_whose(answer["state"].get("subjects") or {})
        if whose:
            what += f"; it has {pluralize(int(answer['state']['messages']), 'message')}, {whose}"
        hint = "see which machine has been away for long, or give it more with --max-bytes; a machine that floods it: "
        yield ServerFinding("warn", thing, what, hint + 'machines.md, "A hostile machine"')
    elif not left:
        kept = pluralize(int(answer["state"]["messages"]), "message")
        yield ServerFinding("ok", thing, f"{used / 1e6:.0f} of {most / 1e6:.0f} MB, {kept} on the way")


async def _check_peer(client: ServerClient, machine: str, peer: str) -> ServerFinding:
    answer = await _ask(client, ask_subject(peer, machine), _PEER_S)
    if answer == _NOBODY:
        return ServerFinding("ok", peer, "is not connected to the server now, or does not know this machine")
    if answer == _DENIED:
        hint = 'the administrator has to add it: "sessiond link admin" with all machines'
        return ServerFinding("error", peer, "this machine may not ask it", hint)
    return ServerFinding("ok", peer, "is connected to the server")


def check_certificates(settings: ServerSettings, now: float) -> Iterator[ServerFinding]:
    """Of the files: when they end."""
    for thing, path in (("link.ca", settings.ca), ("link.certificate", settings.certificate)):
        if path is not None:
            yield judge_end(thing, _end_of(thing, path), now)


def check_server_certificate(
    settings: ServerSettings, certificate: Mapping[str, Any] | None, now: float
) -> Iterator[ServerFinding]:
    if settings.uses_tls and certificate and "notAfter" in certificate:
        yield judge_end("the server's certificate", ssl.cert_time_to_seconds(certificate["notAfter"]), now)


def judge_end(thing: str, end: float, now: float) -> ServerFinding:
    """Of a certificate that ends at `end`."""
    day = dt.datetime.fromtimestamp(end, dt.UTC).strftime("%Y-%m-%d")
    if end <= now:
        return ServerFinding("error", thing, f"has ended on {day}", "make a new one; see machines.md in the documents")
    if end - now < _SOON_DAYS * 86_400:
        left = pluralize(int((end - now) // 86_400), "day")
        return ServerFinding("warn", thing, f"ends in {left}, on {day}", "make a new one in time")
    return ServerFinding("ok", thing, f"lasts until {day}")


def _end_of(thing: str, path: Path) -> float:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc.timestamp()
    except OSError as error:
        raise LinkError(f"{thing}: {path} cannot be read: {reason_of(error)}") from None
    except ValueError:
        raise LinkError(f"{thing}: {path} holds no certificate") from None


_NOBODY: Final = "nobody answers: JetStream is off, or the stream has another name"
_DENIED: Final = "this machine may not ask for it"
_SILENT: Final = "the server does not answer"


async def _ask(
    client: ServerClient, subject: str, patience_s: float = _ANSWER_S, *, payload: bytes = b""
) -> dict[str, Any] | str:
    """What is answered, or why it is not."""
    denied = client.watch_denial(subject)
    asking = asyncio.ensure_future(client.request(subject, payload, timeout=patience_s))
    try:
        await asyncio.wait((asking, denied), return_when=asyncio.FIRST_COMPLETED)
        if denied.done():
            return _DENIED
        answer: dict[str, Any] = json.loads((await asking).data)
        return answer
    except nats.errors.NoRespondersError:
        return _NOBODY
    except TimeoutError:
        return _SILENT
    except ValueError:
        return {}
    finally:
        asking.cancel()
        denied.cancel()


def _hint_of(answer: str) -> str:
    if answer == _NOBODY:
        return MAKE_THEM
    return 'is link.name what the administrator calls this machine? The server needs what "sessiond link admin" prints'


def _refusal(thing: str, answer: Mapping[str, Any]) -> ServerFinding:
    error = answer["error"]
    if error.get("code") == 404:
        return ServerFinding("error", thing, "is not there", MAKE_THEM)
    return ServerFinding("error", thing, f"the server refuses: {quote(str(error.get('description')))}", MAKE_THEM)


def _time_of(text: object) -> float | None:
    try:
        # Nanoseconds, of which Python reads six digits.
        return dt.datetime.fromisoformat(re.sub(r"(\.\d{6})\d*", r"\1", str(text))).timestamp()
    except ValueError:
        return None
