"""Where the verbs of `sessiond link` work: the options for the store and the configuration, and their values."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

from sessiond.cli.config import CONFIG, path_of
from sessiond.cli.frame.command import Args, Option
from sessiond.cli.frame.failures import BAD_CONFIG, CommandFailed
from sessiond.client import locate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from sessiond.config.settings import Config

__all__ = ["CONFIG", "STORE", "load_config", "load_module", "path_of", "store_of"]

STORE = Option(
    "--store",
    "The store's folder (default: $SESSIOND_STORE, else ~/.local/state/sessiond).",
    metavar="DIR",
    complete="file",
)


def store_of(args: Args) -> Path:
    return Path(args.store).expanduser().absolute() if args.store else Path(locate.store_folder())


def load_config(args: Args) -> Config:
    """The configuration, or the failure that it is."""
    # Imported late: msgspec and the structs take some 60 ms.
    from sessiond.config.settings import load
    from sessiond.errors import ConfigError

    try:
        return load(path_of(args))
    except ConfigError as error:
        raise CommandFailed(str(error), status=BAD_CONFIG) from None


def load_module(name: str) -> ModuleType:
    """A module of `sessiond.link`: cli and link are siblings, and the layers forbid an import."""
    try:
        return import_module(f"sessiond.link.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "nats":
            raise
        raise CommandFailed(
            "sessiond link needs the package nats-py, which is not installed beside sessiond",
            hint="in its clone: just install --link, or into the environment that it is in: pip install '.[link]'",
        ) from None


def socket_of(args: Args) -> str | None:
    """The daemon's socket, if one was named."""
    given = args.socket or os.environ.get("SESSIOND_SOCKET")
    return os.path.abspath(os.path.expanduser(given)) if given else None
