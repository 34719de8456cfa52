"""Rules that the types of the configuration cannot express: ids, addresses, patterns, what agents inherit.

Works on the parsed file, after its types have been checked. Does not know the structs or any default.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Any, get_args

from sessiond.config.agents import AcpPreset
from sessiond.config.link import PATHS as LINK_PATHS
from sessiond.config.source import ConfigText, KeyPath, show
from sessiond.patterns import compile_pattern

_INHERITED_TABLES = ("sandbox", "subagents")
_INHERITED_VALUES = ("model", "workspace")
# The keys of a runtime's table that are not for every type, and the types that have them.
_STARTED = ("exec", "acp")
_TYPES_OF_KEY = {
    **dict.fromkeys(("command", "env", "preset"), _STARTED),
    **dict.fromkeys(("input", "output"), ("exec",)),
    **dict.fromkeys(
        (
            "permissions",
            "permissionRules",
            "permissionTimeoutSeconds",
            "idleSeconds",
            "maxSessions",
            "startSeconds",
            "graceSeconds",
            "authenticate",
        ),
        ("acp",),
    ),
}
# One process of an ACP agent has the runs of many sessions.
_OF_A_RUN = re.compile(r"\{(sessionId|sessionKey|model|runId)\}")


def listen_address(text: str) -> tuple[str, int] | None:
    """`(host, port)` of a loopback address like `127.0.0.1:7433`, `localhost:7433` or `[::1]:7433`; else None."""
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        return None
    if host == "localhost":
        # The name is not resolved: a name server must not decide which interface the daemon listens on.
        return "127.0.0.1", int(port)
    bracketed = re.fullmatch(r"\[(.*)\]", host)
    try:
        address = ipaddress.ip_address(bracketed[1] if bracketed else host)
    except ValueError:
        return None
    if not address.is_loopback or (address.version == 6) != bool(bracketed) or "%" in host:
        return None
    return str(address), int(port)


def check(source: ConfigText) -> None:
    """Raise ConfigError for the first rule that the file breaks."""
    data = source.data
    for index, pattern in enumerate(data.get("tools", {}).get("sessions", {}).get("redactPatterns", [])):
        try:
            compile_pattern(pattern)
        except ValueError as error:
            path: KeyPath = ("tools", "sessions", "redactPatterns", index)
            raise source.error(path, str(error)) from None
    _check_http(source, data.get("http", {}))
    _check_agents(source, data.get("agents", {}))
    _check_acp(source, data)
    for name, table in data.get("sources", {}).items():
        if isinstance(table, dict):
            _check_path(source, ("sources", name, "path"), table.get("path"))
    for index, rule in enumerate(data.get("notify", ())):
        _check_path(source, ("notify", index, "headersFile"), rule.get("headersFile"))
    for name in LINK_PATHS:
        _check_path(source, ("link", name), data.get("link", {}).get(name))


def _check_http(source: ConfigText, table: dict[str, Any]) -> None:
    listen = table.get("listen")
    if listen is not None and listen_address(listen) is None:
        raise source.error(
            ("http", "listen"), f'must be a loopback address with a port, like "127.0.0.1:7433", not {show(listen)}'
        )
    for index, origin in enumerate(table.get("allowedOrigins", [])):
        if not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s?#@]+", origin):
            raise source.error(
                ("http", "allowedOrigins", index),
                f'must be an origin like "https://example.org", without a path, not {show(origin)}',
            )


def _check_agents(source: ConfigText, agents: dict[str, Any]) -> None:
    first_default: str | None = None
    seen: set[str] = set()
    for index, agent in enumerate(agents.get("list", [])):
        path: KeyPath = ("agents", "list", index)
        if agent["id"] in seen:
            raise source.error((*path, "id"), f"is {show(agent['id'])} for a second time; every agent has its own id")
        seen.add(agent["id"])
        if agent.get("default"):
            if first_default is not None:
                sentence = f"cannot be true as well: {show(first_default)} is the default agent already"
                raise source.error((*path, "default"), sentence)
            first_default = agent["id"]
        if "maxConcurrent" in agent.get("subagents", {}):
            raise source.error(
                (*path, "subagents", "maxConcurrent"),
                "is one number for all agents: set agents.defaults.subagents.maxConcurrent",
            )
        _check_path(source, (*path, "workspace"), agent.get("workspace"))
        _check_read_only(source, (*path, "sandbox", "readOnly"), agent.get("sandbox", {}))
        _check_runtime(source, (*path, "runtime"), agent["runtime"])
    defaults = agents.get("defaults", {})
    _check_path(source, ("agents", "defaults", "workspace"), defaults.get("workspace"))
    _check_read_only(source, ("agents", "defaults", "sandbox", "readOnly"), defaults.get("sandbox", {}))


def _check_read_only(source: ConfigText, path: KeyPath, sandbox: dict[str, Any]) -> None:
    for index, text in enumerate(sandbox.get("readOnly", ())):
        _check_path(source, (*path, index), text)


def _check_path(source: ConfigText, path: KeyPath, text: str | None) -> None:
    if text is not None and expand(text) is None:
        raise source.error(path, f'must be an absolute path or begin with "~/", not {show(text)}')


def expand(text: str) -> Path | None:
    """`text` with `~` expanded; None if the result is not absolute or the user is unknown."""
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        return None
    return path if path.is_absolute() else None


def _check_runtime(source: ConfigText, path: KeyPath, runtime: dict[str, Any]) -> None:
    kind = runtime["type"]
    for key in runtime:
        types = _TYPES_OF_KEY.get(key, (kind,))
        if kind not in types:
            words = " or ".join(map(show, types))
            raise source.error((*path, key), f"is for type = {words} only; this runtime is {show(kind)}")
    for name in runtime.get("env", {}):
        if not name or "=" in name or "\0" in name:
            raise source.error((*path, "env", name), "is no name that an environment can have")
    if "preset" in runtime:
        for key in ("input", "output"):
            if key in runtime:
                raise source.error((*path, key), f"comes with preset = {show(runtime['preset'])}; leave it out")
    elif kind in _STARTED and "command" not in runtime:
        example = '["my-agent"]' if kind == "exec" else '["my-agent", "--acp"]'
        raise source.error(path, f'needs a command or a preset, like command = {example} or preset = "claude"')
    if kind == "acp":
        _check_acp_runtime(source, path, runtime)


def _check_acp_runtime(source: ConfigText, path: KeyPath, runtime: dict[str, Any]) -> None:
    preset, known = runtime.get("preset"), get_args(AcpPreset)
    if preset is not None and preset not in known:
        raise source.error(
            (*path, "preset"),
            f'has no ACP form for {show(preset)}, only for {", ".join(known)}: use type = "exec", or name a program '
            "that speaks ACP in command",
        )
    texts: list[tuple[KeyPath, str]] = [
        (("command", index), word) for index, word in enumerate(runtime.get("command", ()))
    ]
    texts += [(("env", name), value) for name, value in runtime.get("env", {}).items()]
    for place, text in texts:
        of_a_run = _OF_A_RUN.search(text)
        if of_a_run:
            raise source.error(
                (*path, *place), f"has {of_a_run[0]}, but one process of this agent has many sessions; leave it out"
            )


def _check_acp(source: ConfigText, data: dict[str, Any]) -> None:
    wanted = data.get("acp", {}).get("defaultAgent")
    speaking = [one["id"] for one in data.get("agents", {}).get("list", ()) if one["runtime"]["type"] == "acp"]
    if wanted is not None and wanted not in speaking:
        names = f"these are: {', '.join(speaking)}" if speaking else "there is none"
        raise source.error(("acp", "defaultAgent"), f'must be an agent with type = "acp", not {show(wanted)}; {names}')


def applicable_keys(runtime: dict[str, Any]) -> dict[str, Any]:
    """The table of a runtime, without the keys and the empty command that it may not have in a file."""
    kind, by_preset = runtime["type"], ("input", "output") if runtime.get("preset") else ()
    return {
        key: value
        for key, value in runtime.items()
        if kind in _TYPES_OF_KEY.get(key, (kind,)) and key not in by_preset and (value or key != "command")
    }


def inherit(data: dict[str, Any], *, default_agent: dict[str, Any]) -> dict[str, Any]:
    """The file's data with `agents.defaults` filled in for every agent.

    Tables are merged key by key: an agent that only sets `sandbox.mode` inherits the other settings. A file without
    agents gets `default_agent`. Each machine of `[[link.peers]]` is an agent as well, behind all others.
    """
    agents = data.get("agents", {})
    defaults = agents.get("defaults", {})
    filled = []
    for agent in agents.get("list") or [default_agent]:
        full = dict(agent)
        for key in _INHERITED_TABLES:
            full[key] = {**defaults.get(key, {}), **agent.get(key, {})}
        for key in _INHERITED_VALUES:
            if key in defaults:
                full.setdefault(key, defaults[key])
        filled.append(full)
    filled += [_machine_agent(peer["name"], defaults) for peer in data.get("link", {}).get("peers", ())]
    return {**data, "agents": {**agents, "list": filled}}


def _machine_agent(name: str, defaults: dict[str, Any]) -> dict[str, Any]:
    """The agent that stands for another machine. Model, time limit and sandbox are that machine's own business, and a
    step that only words an announcement is not worth a journey.
    """
    subagents = {
        key: value
        for key, value in defaults.get("subagents", {}).items()
        if key not in ("model", "thinking", "runTimeoutSeconds")
    }
    return {"id": name, "runtime": {"type": "attached"}, "subagents": {**subagents, "announce": "reply"}}
