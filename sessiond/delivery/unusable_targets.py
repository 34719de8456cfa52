"""Find rules of `[[notify]]` that will reach nobody, before somebody waits to be called. Calls nobody."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from sessiond.config.notify import NotifyRule
from sessiond.delivery.headers_file import BadHeaders, read_headers

_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


def find_unusable_targets(rules: tuple[NotifyRule, ...], path: str | None) -> Iterator[tuple[str, str]]:
    """`(problem, advice)` for each rule whose program or headers cannot be used. `path` is the daemon's PATH."""
    for index, rule in enumerate(rules):
        program = rule.command[0] if rule.command is not None else None
        if program is not None and shutil.which(program, path=path or _DEFAULT_PATH) is None:
            yield (
                f"notify[{index}]: the program {program} is not there",
                "install it, or give its whole path in command",
            )
        if rule.headers_file is not None:
            try:
                read_headers(rule.headers_file)
            except BadHeaders as error:
                yield f"notify[{index}]: {error}", "its notifications wait until that is mended"
