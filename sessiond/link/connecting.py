"""How the server is reached, and as whom: address, TLS, nkeys, and the words for what goes wrong. Knows no subjects."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.js.errors import APIError, NoStreamResponseError, ServiceUnavailableError

from sessiond.config.link import DEFAULT_PORT, LinkConfig
from sessiond.errors import quote, reason_of, shorten
from sessiond.link.failures import BusError, LinkError
from sessiond.link.server_client import ServerClient
from sessiond.link.subjects import inbox_of

# A dead connection is noticed after two pings without an answer. The library's own two minutes are long for a laptop
# that wakes up; each ping is a wake-up.
PING_INTERVAL_S: Final = 10
CONNECT_TIMEOUT_S: Final = 5
# What is sent while the connection is away for a moment; more is refused, and its sender keeps it.
PENDING_BYTES: Final = 16 << 20

# The stream, or the disk that all streams share, takes no more.
_FULL: Final = frozenset({10077, 10023, 10047, 10122})
_NO_STREAM: Final = 10059
# nats-server 2.15 says of a full disk nothing but in its log, and stores no more when there is room.
NOT_STORED: Final = (
    "what was published may have arrived, and is published again. If this lasts, see the server's log: one whose disk"
    " was full stores nothing until it is started again"
)


class ServerSettings(msgspec.Struct, frozen=True):
    """Where the server is, and as whom to speak to it. `name` is a machine, or the administrator's user."""

    name: str
    server: str
    stream: str = "X"
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    nkey_seed: Path | None = None

    @property
    def address(self) -> str:
        parts = urlsplit(self.server)
        return f"{parts.hostname}:{parts.port or DEFAULT_PORT}"

    @property
    def uses_tls(self) -> bool:
        return urlsplit(self.server).scheme == "tls"


def settings_of(link: LinkConfig) -> ServerSettings:
    """Those of a machine, by its configuration, which names it and the server."""
    assert link.name is not None and link.server is not None
    return ServerSettings(
        name=link.name,
        server=link.server,
        stream=link.stream,
        ca=link.ca,
        certificate=link.certificate,
        key=link.key,
        nkey_seed=link.nkey_seed,
    )


def server_facts(client: Client) -> dict[str, Any]:
    """What the server has said of itself: `version`, `jetstream`, `max_payload` and so on."""
    facts: dict[str, Any] = client._server_info
    return facts


def peer_certificate(client: Client) -> dict[str, Any] | None:
    """The server's certificate as ssl describes it, None without TLS."""
    writer = getattr(client._transport, "_io_writer", None)
    certificate: dict[str, Any] | None = writer.get_extra_info("peercert") if writer is not None else None
    return certificate


def tls_context(settings: ServerSettings) -> ssl.SSLContext:
    """With the authority and the certificate of the settings. LinkError where a file cannot be used."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if settings.ca is not None:
            context = ssl.create_default_context(cafile=str(settings.ca))
    except (OSError, ssl.SSLError) as error:
        raise LinkError(f"link.ca: {settings.ca} cannot be used: {_reason_of_file(error)}") from None
    try:
        if settings.certificate is not None:
            # An empty password, or OpenSSL would ask for one on the terminal.
            context.load_cert_chain(str(settings.certificate), settings.key and str(settings.key), password="")
    except (OSError, ssl.SSLError) as error:
        files = f"{settings.certificate} with the key {settings.key}"
        raise LinkError(f"link.certificate: {files} cannot be used: {_reason_of_file(error)}") from None
    return context


def _reason_of_file(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        mismatch = "KEY_VALUES_MISMATCH" in str(error.reason or error)
        return "the key is of another certificate" if mismatch else "it holds no PEM that OpenSSL reads"
    return reason_of(error)


def read_seed(path: Path) -> str:
    """The seed of an nkey in a file. LinkError where it is none."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = reason_of(error) if isinstance(error, OSError) else "it is no text"
        raise LinkError(f"link.nkeySeed: {path} cannot be read: {why}") from None
    # The file may have comments, as those that the tool `nk` and nsc write.
    seeds = [line.strip() for line in text.splitlines() if line.strip().startswith("SU")]
    if len(seeds) != 1:
        raise LinkError(f'link.nkeySeed: {path} has no line with the seed of a user, which begins with "SU"')
    public_nkey(seeds[0], str(path))
    return seeds[0]


def new_seed() -> str:
    """The seed of a new nkey of a user. LinkError where the package for it is missing."""
    try:
        import nkeys
    except ImportError:
        raise LinkError("nkeys need the package nkeys: in the clone of sessiond, pip install '.[link]'") from None
    seed: bytes = bytes(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER))
    return seed.decode()


def public_nkey(seed: str, whence: str) -> str:
    """The public nkey (`U...`) of a seed, for the configuration of the server."""
    try:
        import nkeys
    except ImportError:
        raise LinkError("nkeys need the package nkeys: in the clone of sessiond, pip install '.[link]'") from None
    try:
        raw = bytearray(seed.encode())
        prefix, secret = nkeys.decode_seed(raw)
        if bytes(nkeys.encode_seed(secret, prefix)) != bytes(raw):  # the library looks at no checksum
            raise ValueError
        public: bytes = nkeys.from_seed(raw).public_key
    except (nkeys.NkeysError, ValueError, IndexError):
        raise LinkError(f"{whence}: the seed is damaged; make a new one") from None
    return public.decode()


def options_of(settings: ServerSettings) -> dict[str, Any]:
    """The options of nats-py for this server. LinkError where a file cannot be used."""
    options: dict[str, Any] = {
        "servers": [settings.server],
        "name": f"sessiond link {settings.name}",
        "connect_timeout": CONNECT_TIMEOUT_S,
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": 0.5,
        "ping_interval": PING_INTERVAL_S,
        "pending_size": PENDING_BYTES,
        "inbox_prefix": inbox_of(settings.name),
    }
    if settings.uses_tls:
        options["tls"] = tls_context(settings)
    if settings.nkey_seed is not None:
        options["nkeys_seed_str"] = read_seed(settings.nkey_seed)
    return options


def make_client(settings: ServerSettings) -> ServerClient:
    client = ServerClient()
    client.wants_tls = settings.uses_tls
    return client


async def connect_once(settings: ServerSettings) -> ServerClient:
    """A client that is connected. BusError for the first reason why it is not, instead of trying again."""
    client = make_client(settings)
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def report(error: Exception) -> None:
        if not failed.done():
            failed.set_exception(in_words(error, settings))
        else:
            client.note(error)

    connecting = asyncio.ensure_future(client.connect(**options_of(settings), error_cb=report))
    try:
        await asyncio.wait((connecting, failed), return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            connecting.cancel()
            await asyncio.wait((connecting,))
            await client.end()
        else:
            failed.set_result(None)
    finally:
        connecting.cancel()
    await failed
    await connecting
    return client


def _shows_nothing(settings: ServerSettings) -> bool:
    """Whether it comes without anything by which a server with TLS could know it."""
    return settings.uses_tls and settings.certificate is None and settings.nkey_seed is None


def in_words(error: BaseException, settings: ServerSettings) -> BusError:
    """Why the server cannot be used, for its user."""
    where = f"the server {settings.address}"
    text = str(error)
    match error:
        case BusError():
            return error
        case ssl.SSLCertVerificationError():
            why = error.verify_message.rstrip(".")
            return BusError(
                "unreachable",
                f"{where} has a certificate that cannot be verified: {why}; link.ca must be the "
                "authority that signed it, and link.server the name in it",
            )
        case ssl.SSLError() | ConnectionError() | nats.errors.UnexpectedEOF() if _shows_nothing(settings):
            wanted = "it may want a certificate, and none is configured: link.certificate and link.key"
            return BusError("unreachable", f"{where} hangs up; {wanted}")
        case ssl.SSLError():
            return BusError(
                "unreachable",
                f"{where} and this machine do not agree on TLS ({shorten(error.reason or text)}); see that "
                "link.certificate was signed by the authority that the server knows, and has not ended",
            )
        case nats.errors.SecureConnWantedError() | nats.errors.SecureConnRequiredError():
            return BusError(
                "unreachable",
                f'{where} offers no TLS, and link.server begins with "tls://"; nothing was said to it. Its'
                ' configuration needs a block "tls", see "sessiond link admin"',
            )
        case socket.gaierror():
            return BusError("unreachable", f"{where} is not found: there is no machine of that name; see link.server")
        case ConnectionRefusedError():
            return BusError("unreachable", f"{where} is not reachable: nothing listens there; is nats-server running?")
        case TimeoutError():
            return BusError("unreachable", f"{where} is not reachable: it does not answer")
        case ConnectionError() | nats.errors.UnexpectedEOF() if settings.uses_tls:
            return BusError("unreachable", f"{where} hangs up; see that it knows the authority of link.certificate")
        case OSError():
            return BusError("unreachable", f"{where} is not reachable: {reason_of(error)}")
    lowered = text.lower()
    if isinstance(error, nats.errors.AuthorizationError) or "authorization violation" in lowered:
        return BusError(
            "unreachable",
            f"{where} does not let {settings.name} in: its configuration has no such user, or another certificate or "
            'nkey for it; see "sessiond link admin"',
        )
    if "expecting info" in lowered:
        return BusError("unreachable", f"{where} is no NATS server, or one that wants TLS first")
    if isinstance(error, nats.errors.Error):
        return BusError("unreachable", f"{where}: {quote(text.removeprefix('nats: '))}")
    return BusError("unreachable", f"{where} cannot be used: {quote(text or type(error).__name__)}")


def is_of_stream(error: APIError) -> bool:
    """Whether an error of a question about a consumer is not about that consumer, which is missing."""
    return error.code != 404 or error.err_code == _NO_STREAM


def stream_refusal(error: APIError | NoStreamResponseError, settings: ServerSettings) -> BusError:
    """Why the stream does not take a message, or tell of itself."""
    where = f"the server {settings.address}"
    code = None if isinstance(error, NoStreamResponseError) else error.err_code
    if code in _FULL:
        return BusError("full", f"the stream {settings.stream} is full; its limit or the server's disk has to grow")
    # Without a code nobody was there to answer.
    if code == _NO_STREAM or isinstance(error, NoStreamResponseError | ServiceUnavailableError):
        return BusError(
            "no_stream",
            f"{where} has no stream {settings.stream} (any more), or JetStream is off; the administrator makes it:"
            ' "sessiond link admin"',
        )
    return BusError("refused", f"{where} refuses it: {quote(error.description or str(error))}")
