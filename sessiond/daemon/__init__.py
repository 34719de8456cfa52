"""The daemon: `app.py` builds it, `lifecycle.py` runs it."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

# Trio imports these two, and needs them for TLS and for names of hosts: in a daemon that is for notifications over
# HTTPS. They take 1.4 MB, and 5 ms of a start.
_RARELY_NEEDED = ("ssl", "idna")


def _import_when_used(name: str) -> None:
    """Let `import` find the module; it is read when something of it is asked for first."""
    # `importlib.util.LazyLoader` reads it already in the next `import`.
    module = ModuleType(name)

    def read(attribute: str) -> Any:
        if sys.modules.get(name) is module:
            del sys.modules[name]
        whole = import_module(name)
        vars(module).update(vars(whole))
        return getattr(whole, attribute)

    vars(module)["__getattr__"] = read
    sys.modules.setdefault(name, module)


def _import_structlog() -> None:
    """Import structlog without what it imports for others: 50 ms of a start, and 6 MB."""
    # rich, where it is installed, for tracebacks that `logs.py` does not want; asyncio for `await log.ainfo(...)`. Only
    # structlog gets these in their place. None makes an import fail, for which structlog is prepared.
    instead: dict[str, Any] = {"rich": None, "asyncio": ModuleType("asyncio")}
    instead = {name: module for name, module in instead.items() if name not in sys.modules}
    sys.modules.update(instead)
    try:
        import_module("structlog")
    except (AttributeError, ImportError):
        # Another version of it may need them; it gets them in the next import, which begins anew.
        for name in [name for name in sys.modules if name.partition(".")[0] == "structlog"]:
            del sys.modules[name]
    finally:
        for name in instead:
            del sys.modules[name]


_import_structlog()
for _name in _RARELY_NEEDED:
    _import_when_used(_name)
