"""What the administrator of the server does once: its configuration, the stream, and the consumers of each machine.

A machine gets no right to make consumers: with it, it could name any subject for the delivery, also one to which it may
not publish. An older server ignores what it does not know, in silence, so everything made is compared with what was
wanted. Source: machines.md, "The server".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import nats.errors
from nats.js import JetStreamManager, api
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

from sessiond.config.link import DEFAULT_PORT
from sessiond.errors import quote
from sessiond.link.connecting import ServerSettings, connect_once, in_words
from sessiond.link.failures import BusError
from sessiond.link.server_client import check_answer
from sessiond.link.subjects import (
    KINDS,
    STREAM_SUBJECTS,
    Kind,
    answer_subjects,
    ask_subject,
    consumer_filter,
    consumer_name,
    deliver_subject,
    inbox_of,
)

ADMIN: Final = "admin"
# A machine that is away for longer asks for what it has missed.
MAX_AGE_S: Final = 14 * 86_400
MAX_BYTES: Final = 8 << 30
DUPLICATES_S: Final = 120
ACK_WAIT_S: Final = 30
MAX_ACK_PENDING: Final = 64

# Where the packages of distributions keep it.
STORE_DIR: Final = "/var/lib/nats"

_CONFIGURATION: Final = """\
# The configuration of nats-server (2.10 or later) for sessiond link. Start it with: nats-server -c THIS-FILE
port: {port}
{tls}jetstream {{
  store_dir: "/var/lib/nats"
  # After each message, or a power cut loses some that were acknowledged. (2.9 does not know it: remove the line there.)
  sync_interval: always
}}
authorization {{ users: [
{users}
] }}
"""
_TLS: Final = """\
tls {{
  cert_file: "/etc/nats/srv.pem"
  key_file: "/etc/nats/srv.key"
{clients}}}
"""
_CLIENTS: Final = """\
  ca_file: "/etc/nats/ca.pem"
  # A machine is the user whose name its certificate has.
  verify_and_map: true
"""


class Step(msgspec.Struct, frozen=True):
    """What `set_up` did with the stream or a consumer: made, changed, or found as it has to be."""

    what: str
    done: str


def server_configuration(
    machines: Sequence[str],
    *,
    stream: str,
    admin: str = ADMIN,
    nkeys: Mapping[str, str] | None = None,
    is_encrypted: bool = True,
    port: int = DEFAULT_PORT,
) -> str:
    """The configuration file. `nkeys`, the public ones by name, stand for users without certificates; then only the
    server may have one, or nobody: without `is_encrypted`.
    """
    users = [
        _user(admin, nkeys, None),
        *(_user(name, nkeys, _permissions(name, machines, stream)) for name in machines),
    ]
    tls = _TLS.format(clients="" if nkeys is not None else _CLIENTS) if is_encrypted else ""
    return _CONFIGURATION.format(port=port, tls=tls, users=",\n".join(users))


def _user(name: str, nkeys: Mapping[str, str] | None, permissions: str | None) -> str:
    who = f'user: "{name}"' if nkeys is None else f'nkey: "{nkeys.get(name, f"THE-PUBLIC-NKEY-OF-{name}")}"'
    remark = "" if nkeys is None else f"  # {name}\n"
    return (
        f"{remark}  {{ {who} }}" if permissions is None else f"{remark}  {{ {who}, permissions: {{\n{permissions} }} }}"
    )


def _permissions(name: str, machines: Sequence[str], stream: str) -> str:
    others = [other for other in machines if other != name]
    publish = [
        *(f"x.{name}.{other}.*.*" for other in others),
        *(ask_subject(other, name) for other in others),
        *(f"$JS.API.CONSUMER.INFO.{stream}.{consumer_name(name, kind)}" for kind in KINDS),
        *(f"$JS.ACK.{stream}.{consumer_name(name, kind)}.>" for kind in KINDS),
        # Not by `allow_responses`: whoever asks could name any subject for the answer, so that two machines together
        # may do all that the administrator may.
        *(answer_subjects(other) for other in others),
    ]
    subscribe = [f"{inbox_of(name)}.>", ask_subject(name, "*")]
    return f"    publish: [{_list(publish)}],\n    subscribe: [{_list(subscribe)}]"


def _list(subjects: Sequence[str]) -> str:
    return ", ".join(f'"{subject}"' for subject in subjects)


def wanted_stream(stream: str, max_bytes: int = MAX_BYTES, max_age_s: float = MAX_AGE_S) -> api.StreamConfig:
    return api.StreamConfig(
        name=stream,
        subjects=[*STREAM_SUBJECTS],
        # Each message has one reader, and is removed when that one has it. So what lies there is what somebody who is
        # away has not got yet.
        retention=api.RetentionPolicy.WORK_QUEUE,
        storage=api.StorageType.FILE,
        # Says so at once; to drop the oldest would be silent.
        discard=api.DiscardPolicy.NEW,
        max_bytes=max_bytes,
        max_age=max_age_s,
        duplicate_window=min(DUPLICATES_S, max_age_s),
    )


def wanted_consumer(machine: str, kind: Kind) -> api.ConsumerConfig:
    return api.ConsumerConfig(
        durable_name=consumer_name(machine, kind),
        deliver_subject=deliver_subject(machine, kind),
        filter_subject=consumer_filter(machine, kind),
        deliver_policy=api.DeliverPolicy.ALL,
        ack_policy=api.AckPolicy.EXPLICIT,
        replay_policy=api.ReplayPolicy.INSTANT,
        ack_wait=ACK_WAIT_S,
        max_deliver=-1,
        max_ack_pending=MAX_ACK_PENDING,
    )


def wanted_consumers(machines: Sequence[str]) -> Iterator[api.ConsumerConfig]:
    return (wanted_consumer(machine, kind) for machine in machines for kind in KINDS)


def differences(wanted: Any, found: Any) -> list[str]:
    """What the server has otherwise than it was wanted, `name: found, not wanted`."""
    told = wanted.as_dict()
    has = found.as_dict()
    return [f"{name}: {has.get(name)}, not {value}" for name, value in told.items() if has.get(name) != value]


async def set_up(
    settings: ServerSettings,
    machines: Sequence[str],
    *,
    max_bytes: int | None = None,
    max_age_s: float | None = None,
) -> list[Step]:
    """Make the stream and the consumers of these machines, or change those that are otherwise. It may be done again at
    any time, as when there is another machine; limits that are not given stay what they are. BusError where the server
    refuses, or has made something else.
    """
    client = await connect_once(settings)
    try:
        manager = client.jsm()
        with check_answer():
            steps = [await _set_up_stream(manager, settings.stream, max_bytes, max_age_s)]
            for consumer in wanted_consumers(machines):
                steps.append(await _set_up_consumer(manager, settings.stream, consumer))  # noqa: PERF401 - one by one
        return steps
    except ServiceUnavailableError as error:
        raise BusError("no_stream", _without_jetstream(settings, error)) from None
    except APIError as error:
        said = quote(error.description or str(error))
        raise BusError("refused", f"the server {settings.address} refuses it: {said}") from None
    except TimeoutError:
        raise BusError(
            "forbidden",
            f"the server {settings.address} did not answer {settings.name}, who may have no right to make streams; "
            "use the administrator's certificate or nkey",
        ) from None
    except nats.errors.NoRespondersError:
        raise BusError("no_stream", _without_jetstream(settings, None)) from None
    except nats.errors.Error as error:
        raise in_words(error, settings) from None
    finally:
        await client.end()


def _without_jetstream(settings: ServerSettings, error: APIError | None) -> str:
    said = f" ({error.description})" if error is not None and error.description else ""
    return (
        f"the server {settings.address} has JetStream switched off{said}: its configuration needs a block "
        '"jetstream", see "sessiond link admin"'
    )


async def _set_up_stream(manager: JetStreamManager, name: str, max_bytes: int | None, max_age_s: float | None) -> Step:
    what = f"stream {name}"
    try:
        found = (await manager.stream_info(name)).config
    except NotFoundError:
        wanted = wanted_stream(name, max_bytes or MAX_BYTES, max_age_s or MAX_AGE_S)
        return _verify(what, "made", wanted, (await manager.add_stream(wanted)).config)
    wanted = wanted_stream(name, max_bytes or found.max_bytes or MAX_BYTES, max_age_s or found.max_age or MAX_AGE_S)
    if not differences(wanted, found):
        return Step(what, "as it has to be")
    return _verify(what, "changed", wanted, (await manager.update_stream(wanted)).config)


async def _set_up_consumer(manager: JetStreamManager, stream: str, wanted: api.ConsumerConfig) -> Step:
    what = f"consumer {wanted.durable_name}"
    try:
        found = (await manager.consumer_info(stream, str(wanted.durable_name))).config
    except NotFoundError:
        found = (await manager.add_consumer(stream, wanted)).config
        return _verify(what, "made", wanted, found)
    if not differences(wanted, found):
        return Step(what, "as it has to be")
    # What cannot be changed in place is made anew: what it had not acknowledged yet is delivered again.
    try:
        found = (await manager.add_consumer(stream, wanted)).config
        if not differences(wanted, found):
            return Step(what, "changed")
    except APIError:
        pass
    await manager.delete_consumer(stream, str(wanted.durable_name))
    found = (await manager.add_consumer(stream, wanted)).config
    return _verify(what, "made anew", wanted, found)


def _verify(what: str, done: str, wanted: Any, found: Any) -> Step:
    left = differences(wanted, found)
    if left:
        raise BusError(
            "different",
            f"the {what} is not what was asked for: {'; '.join(left)}; a server older than 2.10 may not know it",
        )
    return Step(what, done)
