"""Find rules of `[[notify]]` that will reach nobody, before somebody waits to be called. Calls nobody."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator

from sessiond.config.notify import NotifyRule
from sessiond.delivery.headers_file import BadHeaders, read_headers

_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


def find_unusable_targets(rules: tuple[NotifyRule, ...], path: str | None) -> Iterator[tuple[str, str]]:
    """`(problem, advice)` for each rule whose program or headers cannot be used. `path` is the daemon's PATH."""
    for index, rule in enumerate(rules):
        if rule.command is not None:
            for problem, advice in _find_unusable_program(rule.command[0], path or _DEFAULT_PATH):
                yield f"notify[{index}]: {problem}", advice
        if rule.headers_file is not None:
            try:
                read_headers(rule.headers_file)
            except BadHeaders as error:
                yield f"notify[{index}]: {error}", "its notifications wait until that is mended"


def _find_unusable_program(program: str, path: str) -> Iterator[tuple[str, str]]:
    if shutil.which(program, path=path) is not None:
        return
    found = shutil.which(program, mode=os.F_OK, path=path)
    if found is not None:
        yield f"the program {found} may not be executed", f"make it executable: chmod +x {shlex.quote(found)}"
    else:
        yield f"the program {program} is not there", "install it, or give its whole path in command"
