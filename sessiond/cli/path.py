"""`sessiond path`: print the path of a session's transcript."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

from sessiond import errors
from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Argument, Command
from sessiond.cli.frame.daemon import CALL_TIMEOUT_S, connect
from sessiond.cli.frame.failures import (
    NOT_FOUND,
    NOT_RUNNING,
    START_IT,
    CommandFailed,
    in_words_of_the_command_line,
)
from sessiond.cli.terminal.output import as_json, lines
from sessiond.client import locate
from sessiond.client.errors import DaemonNotRunning

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sessiond.client.blocking import Client


def run(args: Args) -> None:
    with connect(args) as client:
        try:
            found = _ask(client, args.key)
        except (DaemonNotRunning, CommandFailed) as error:
            is_away = isinstance(error, DaemonNotRunning) or error.status == NOT_RUNNING
            # With a socket, which may be of another store, or a token, which sees less, the files must not be read.
            if not is_away or args.socket or locate.has_token_file():
                raise
            found = _find_offline(args.key)
    if args.json:
        as_json(found)
    else:
        lines([found["transcriptPath"]])


def _ask(client: Client, key: str) -> dict[str, Any]:
    found = client.call("sessions.resolve", key=key, timeout_s=CALL_TIMEOUT_S)
    asked = {"search": found["sessionId"], "includeArchived": True}
    rows = client.call("sessions_list", asked, timeout_s=CALL_TIMEOUT_S)["sessions"]
    # An archived session has the key of another one; one of another program may have the same id.
    same = [row for row in rows if row["sessionId"] == found["sessionId"]]
    path = next((row for row in same if row["key"] == found["key"]), same[0])["transcriptPath"]
    return {**found, "transcriptPath": path}


def _find_offline(key: str) -> dict[str, Any]:
    """The same, from the files of the store, if no daemon runs."""
    offline = import_module("sessiond.sessions.offline")  # imported late, because it imports msgspec
    store = Path(locate.store_folder())
    try:
        session = offline.find(store, key, _key_rules())
    except errors.SessiondError as error:
        if import_module("sessiond.model.keys").is_foreign(key.strip()):
            why = "and only a running daemon finds the sessions of other programs"
            raise CommandFailed(f"no daemon runs, {why}, such as {key}", hint=START_IT, status=NOT_RUNNING) from None
        message = in_words_of_the_command_line(str(error))
        raise CommandFailed(f"{message} (no daemon runs; looked in {store})", status=NOT_FOUND) from None
    except OSError as error:
        why = f"and the store {store} cannot be read: {error.strerror}"
        raise CommandFailed(f"no daemon runs, {why}", hint=START_IT, status=NOT_RUNNING) from None
    return {"key": session.key, "sessionId": session.session_id, "transcriptPath": offline.path_of(store, session)}


def _key_rules() -> Any:
    """The key rules of the configuration; the defaults if it cannot be loaded."""
    configuration, keys = import_module("sessiond.config.settings"), import_module("sessiond.model.keys")
    given = os.environ.get("SESSIOND_CONFIG")
    try:
        config = configuration.load(Path(given).expanduser() if given else None)
    except errors.ConfigError:
        return keys.KeyRules()
    return keys.KeyRules(default_agent=config.default_agent(), main_key=config.session.main_key)


COMMAND = Command(
    "path",
    "Print the path of a session's transcript.",
    run=run,
    description="Without a daemon it is looked for in the store's files.",
    arguments=(Argument("key", "A session key, `main`, a label, or a session id.", complete="key"),),
    options=CLIENT_OPTIONS,
    examples=('tail -f "$(sessiond path main)"', 'jq -r .type "$(sessiond path main)" | sort | uniq -c'),
)
