"""Take a URL of http or https apart. Pure; opens nothing."""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from typing import NamedTuple
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}
_PRINTABLE = re.compile(r"[!-~]+")
_LABEL = r"[A-Za-z0-9_-]{1,63}"
_HOST = re.compile(rf"(?!.{{254}}){_LABEL}(?:\.{_LABEL})*\.?")


class HttpUrl(NamedTuple):
    """`target` is path and query, `authority` what stands in the header `Host`. `host` has no brackets."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def parse_http_url(text: str) -> HttpUrl:
    """The parts of a URL. ValueError with what it must be, as the middle of a sentence."""
    if not _PRINTABLE.fullmatch(text):
        raise ValueError("must have plain ASCII characters only, others as %XX and in the host as xn--")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError('must be a URL like "https://ntfy.example/topic"') from None
    host = parts.hostname or ""
    if parts.scheme not in _PORTS or not _is_host(host) or port == 0:
        raise ValueError('must be an address of http or https, like "https://ntfy.example/topic"')
    if "@" in parts.netloc:
        raise ValueError("must have no user or password in it: put an Authorization header into headersFile")
    if "#" in text:
        raise ValueError("must have no fragment (#...), which is never sent")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return HttpUrl(parts.scheme, host, port or _PORTS[parts.scheme], target)


def _is_host(text: str) -> bool:
    if ":" not in text:
        return _HOST.fullmatch(text) is not None
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return "%" not in text
