"""One attempt to tell a notification: by the command of its rule, or by a POST to its URL. Retries are the outbox's.

Source: runs.md, "Notifications".
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import trio

import sessiond
from sessiond.config.notify import PLACEHOLDERS, NotifyRule
from sessiond.config.urls import parse_http_url
from sessiond.delivery.channel_command import CommandFailure, command_for, run_command
from sessiond.delivery.channels import ANSWER_S, Delivery, NotDelivered
from sessiond.delivery.headers_file import BadHeaders, read_headers
from sessiond.delivery.notification import Notification, fields_of
from sessiond.delivery.notify_rules import rules_by_name
from sessiond.errors import NoThread, reason_of
from sessiond.runtimes import launcher
from sessiond.tasks import own_threads

if TYPE_CHECKING:
    from sessiond.delivery.http_post import HttpPoster

_CONTENT_TYPES = {"json": "application/json", "text": "text/plain; charset=utf-8"}


class NotifyTargets:
    """The targets of all rules. `rules()` are those of the current configuration, `environ` that of the daemon; each
    has `answer_s` seconds to acknowledge.

    Each target has a thread of its own for what may be stuck: a name server, a network disk with the headers.
    """

    def __init__(
        self,
        rules: Callable[[], tuple[NotifyRule, ...]],
        *,
        environ: Mapping[str, str],
        cwd: Path,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._rules, self._environ, self._cwd, self._answer_s = rules, environ, cwd, answer_s
        self._posters: dict[str, HttpPoster] = {}
        self._reading: dict[str, Callable[..., Any]] = {}

    def reconfigure(self) -> None:
        """The configuration was read. With a command among its rules, the process that starts programs is started now:
        the first who has to be told would wait for it some 100 ms.
        """
        rules = rules_by_name(self._rules())
        if any(rule.command is not None for rule in rules.values()):
            launcher.current().prepare()
        for kept in (self._posters, self._reading):
            for name in kept.keys() - rules.keys():
                del kept[name]

    def why_nobody(self, _delivery: Delivery) -> str | None:
        """Nothing keeps an attempt from being made."""
        return None

    async def deliver(self, delivery: Delivery) -> None:
        """Make one attempt; returns when it is acknowledged: exit status 0, or an answer 2xx. NotDelivered if not."""
        notification = delivery.notification
        assert notification is not None
        rule = rules_by_name(self._rules()).get(notification.rule)
        if rule is None:
            raise NotDelivered("its [[notify]] is no longer in the configuration")
        fields = fields_of(notification, title=delivery.title, text=delivery.text, session_key=delivery.session_key)
        if rule.command is not None:
            await self._by_command(rule.command, fields)
        else:
            await self._by_post(notification, rule, fields)

    async def _by_command(self, template: tuple[str, ...], fields: Mapping[str, Any]) -> None:
        words = {name: str(fields.get(name, "")) for name in PLACEHOLDERS}
        environ = with_session_bus(self._environ, os.geteuid())
        command = command_for(template, words, environ=environ, cwd=self._cwd)
        try:
            await run_command(command, "the command", self._answer_s)
        except CommandFailure as error:
            raise NotDelivered(str(error)) from None

    async def _by_post(self, notification: Notification, rule: NotifyRule, fields: dict[str, Any]) -> None:
        from sessiond.delivery.http_post import HttpPoster, NotPosted  # 10 ms and a megabyte, for whoever has a URL

        url = parse_http_url(rule.url or "")
        with trio.move_on_after(self._answer_s) as limit:
            headers = await self._headers(notification, rule)
            poster = self._posters.setdefault(notification.rule, HttpPoster())
            try:
                status = await poster.post(url, headers, _content(rule, fields))
            except NotPosted as error:
                raise NotDelivered(str(error)) from None
        if limit.cancelled_caught:
            raise NotDelivered(f"{url.host} did not answer within {self._answer_s:g} s")
        if 300 <= status < 400:
            raise NotDelivered(f"{url.host} answered {status}; redirects are not followed: set the url it leads to")
        if not 200 <= status < 300:
            raise NotDelivered(f"{url.host} answered {status}")

    async def _headers(self, notification: Notification, rule: NotifyRule) -> list[tuple[str, str]]:
        given: list[tuple[str, str]] = []
        if rule.headers_file is not None:
            read = self._reading.setdefault(notification.rule, own_threads(1))
            try:
                given = await read(read_headers, rule.headers_file, abandon_on_cancel=True)
            except (BadHeaders, NoThread) as error:
                raise NotDelivered(reason_of(error)) from None
        own = {
            "User-Agent": f"sessiond/{sessiond.__version__}",
            "Content-Type": _CONTENT_TYPES[rule.format],
            # By which a receiver of plain text can tell a repetition, too.
            "Idempotency-Key": notification.fact_id,
        }
        names = {name.lower() for name, _ in given}
        return [*((name, value) for name, value in own.items() if name.lower() not in names), *given]


def _content(rule: NotifyRule, fields: dict[str, Any]) -> bytes:
    if rule.format == "json":
        return msgspec.json.encode(fields)
    words = [f"{fields['title']}\n{fields['text']}", *([fields["body"]] if "body" in fields else [])]
    return "\n\n".join(words).encode("utf-8", "replace")


def with_session_bus(environ: Mapping[str, str], uid: int, *, run: Path = Path("/run/user")) -> dict[str, str]:
    """`environ` with the variables by which a program finds the desktop of user `uid`, where the desktop is there.

    A daemon that was started over ssh, by cron or before the login has none of them, although the bus of the session
    may be there now, at the path that systemd gives it.
    """
    found = dict(environ)
    folder = Path(found.get("XDG_RUNTIME_DIR") or run / str(uid))
    if not found.get("XDG_RUNTIME_DIR") and _is_own(folder, uid, stat.S_ISDIR):
        found["XDG_RUNTIME_DIR"] = str(folder)
    if not found.get("DBUS_SESSION_BUS_ADDRESS") and _is_own(folder / "bus", uid, stat.S_ISSOCK):
        found["DBUS_SESSION_BUS_ADDRESS"] = f"unix:path={folder / 'bus'}"
    return found


def _is_own(path: Path, uid: int, is_kind: Callable[[int], bool]) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return status.st_uid == uid and is_kind(status.st_mode)
