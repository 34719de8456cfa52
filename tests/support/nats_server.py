"""A real nats-server on a free port with a store of its own, configured as `sessiond link admin` prints it: with TLS
and client certificates, with nkeys, or open to everybody on loopback.
"""

from __future__ import annotations

import datetime as dt
import functools
import ipaddress
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

import nkeys
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from support.patience import PATIENCE_S

from sessiond.link.connecting import ServerSettings
from sessiond.link.server_check import RECOMMENDED
from sessiond.link.server_setup import ADMIN, server_configuration

Mode = Literal["open", "tls", "nkeys"]
# Another version than the one of the tests' packages: SESSIOND_NATS_SERVER=/usr/sbin/nats-server.
PROGRAM = os.environ.get("SESSIOND_NATS_SERVER") or str(Path(sys.executable).with_name("nats-server"))
HOST = "127.0.0.1"


@functools.cache
def is_old() -> bool:
    """Whether it is of the versions that do not start with `sync_interval` in their configuration."""
    said = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v(\d+)\.(\d+)", said)
    assert found is not None
    return (int(found[1]), int(found[2])) < RECOMMENDED


class NatsServer:
    """Not started yet. `start`, `stop` (SIGTERM) and `kill` may come again and again, on the same port and store.

    `machines` have users; the administrator's is `admin`. `host` is where it listens, and the name in its certificate.
    """

    def __init__(
        self, folder: Path, mode: Mode = "open", machines: Sequence[str] = ("lap", "mars"), *, host: str = HOST
    ) -> None:
        self.folder = folder
        self.mode = mode
        self.machines = tuple(machines)
        self.host = host
        self.port = 0
        self.monitor = ""
        self.process: subprocess.Popen[bytes] | None = None
        # More of the configuration, behind the rest.
        self.more = ""
        # `jetstream` and `sync_interval` as they are, unless a test wants them otherwise.
        self.replacements: dict[str, str] = {}
        self.store = folder / "jetstream"
        folder.mkdir(exist_ok=True)
        self.store.mkdir(exist_ok=True)
        if mode == "tls":
            for name, content in _certificates(host, (ADMIN, *self.machines)).items():
                (folder / name).write_bytes(content)
                (folder / name).chmod(0o600)
        elif mode == "nkeys":
            for name in (ADMIN, *self.machines):
                make_seed(folder / f"{name}.nk")

    @property
    def url(self) -> str:
        return f"{'tls' if self.mode == 'tls' else 'nats'}://{self.host}:{self.port}"

    def settings(self, name: str = ADMIN) -> ServerSettings:
        """As a machine, or as the administrator."""
        tls, seed = self.mode == "tls", self.mode == "nkeys"
        return ServerSettings(
            name=name,
            server=self.url,
            ca=self.folder / "ca.pem" if tls else None,
            certificate=self.folder / f"{name}.pem" if tls else None,
            key=self.folder / f"{name}.key" if tls else None,
            nkey_seed=self.folder / f"{name}.nk" if seed else None,
        )

    def link_table(self, name: str) -> str:
        """The same as lines of the [link] table of a machine's config.toml."""
        given = self.settings(name)
        lines = [f'name = "{name}"', f'server = "{given.server}"']
        files = {"ca": given.ca, "certificate": given.certificate, "key": given.key, "nkeySeed": given.nkey_seed}
        lines += [f'{key} = "{path}"' for key, path in files.items() if path is not None]
        return "\n".join(["[link]", *lines, ""])

    def configuration(self) -> str:
        public = (
            {name: public_of(self.folder / f"{name}.nk") for name in (ADMIN, *self.machines)}
            if (self.mode == "nkeys")
            else None
        )
        text = server_configuration(self.machines, stream="X", nkeys=public, is_encrypted=self.mode == "tls")
        if self.mode == "open":
            text = text.partition("authorization {")[0]
        text = text.replace("port: 4222", f'listen: "{self.host}:{self.port or -1}"\nhttp: "{HOST}:-1"')
        text = text.replace("/var/lib/nats", str(self.store))
        for name in ("srv.pem", "srv.key", "ca.pem"):
            text = text.replace(f"/etc/nats/{name}", str(self.folder / name))
        if is_old():
            text = text.replace("  sync_interval: always\n", "")
        for old, new in self.replacements.items():
            assert old in text
            text = text.replace(old, new)
        return f"{text}\n{self.more}\n"

    def start(self) -> Self:
        config, ports = self.folder / "nats.conf", self.folder / "ports"
        shutil.rmtree(ports, ignore_errors=True)
        ports.mkdir()
        config.write_text(self.configuration())
        with (self.folder / "nats.log").open("ab") as log:
            self.process = subprocess.Popen(
                [PROGRAM, "-c", str(config), "--ports_file_dir", str(ports)], stdout=log, stderr=log
            )
        deadline = time.monotonic() + PATIENCE_S
        while not (found := self._read_ports(ports)):
            assert self.process.poll() is None, (self.folder / "nats.log").read_text()[-2000:]
            assert time.monotonic() < deadline, "nats-server does not get ready"
            time.sleep(0.02)
        self.port, self.monitor = found
        return self

    def _read_ports(self, ports: Path) -> tuple[int, str] | None:
        for file in ports.glob("*.ports"):
            try:
                written = json.loads(file.read_text())
            except ValueError:  # is still being written
                return None
            port = re.search(r":(\d+)$", written["nats"][0])
            assert port is not None
            return int(port[1]), written["monitoring"][0]
        return None

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def suspend(self) -> None:
        """Stop all of its threads. The signal alone is sent before they are, and one may answer meanwhile."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def _end(self, how: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(how)
            self.process.wait(PATIENCE_S)
            self.process = None

    def reload(self) -> None:
        """Let it read its configuration again, with other `machines` perhaps."""
        assert self.process is not None
        (self.folder / "nats.conf").write_text(self.configuration())
        self.process.send_signal(signal.SIGHUP)


def make_seed(path: Path) -> None:
    path.write_bytes(bytes(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)) + b"\n")
    path.chmod(0o600)


def public_of(path: Path) -> str:
    public: bytes = nkeys.from_seed(bytearray(path.read_bytes().strip())).public_key
    return public.decode()


@functools.cache
def _certificates(host: str, users: tuple[str, ...]) -> dict[str, bytes]:
    """The files of `make_certificates`, by name: made once, because they cost as much as ten starts of the server."""
    with tempfile.TemporaryDirectory() as name:
        make_certificates(Path(name), host, users)
        return {path.name: path.read_bytes() for path in Path(name).iterdir()}


def make_certificates(folder: Path, host: str, users: Sequence[str], *, days: int = 825) -> None:
    """`ca.pem`, `srv.pem` and one for each user, with their keys: as the page machines.md says, with openssl."""
    if shutil.which("openssl") is None or days < 1:
        _make_with_cryptography(folder, host, users, days)
        return

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "3650", "-subj", "/CN=ca")
    for name, subject in [("srv", host), *((user, user) for user in users)]:
        kind = "IP" if name == "srv" and re.fullmatch(r"[0-9.]+", host) else "DNS"
        (folder / f"{name}.ext").write_text(f"subjectAltName={kind}:{subject}\n")
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={subject}")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", str(days))
        openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.pem", "-extfile", f"{name}.ext")


def _make_with_cryptography(folder: Path, host: str, users: Sequence[str], days: int) -> None:
    authority = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")])
    for name, subject in [("ca", "ca"), ("srv", host), *((user, user) for user in users)]:
        key = authority if name == "ca" else ec.generate_private_key(ec.SECP256R1())
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=2))
            .not_valid_after(now + dt.timedelta(days=3650 if name == "ca" else days))
            .add_extension(x509.BasicConstraints(ca=name == "ca", path_length=None), critical=True)
        )
        if name == "srv" and re.fullmatch(r"[0-9.]+", host):
            names: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        else:
            names = x509.DNSName(subject)
        builder = builder.add_extension(x509.SubjectAlternativeName([names]), critical=False)
        certificate = builder.sign(authority, hashes.SHA256())
        (folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (folder / f"{name}.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
