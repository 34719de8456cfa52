"""The command line: one module per command, loaded when it is used. Talks to the daemon through its client only."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main(words: list[str] | None = None) -> NoReturn:
    """Run the command line `words` (the process's own) and exit with its status."""
    words = sys.argv[1:] if words is None else words
    if sys.stdout is None or sys.stderr is None:  # closed with `>&-`: do nothing, because no answer could be written
        if words[:1] != ["hook"] or words[1:2] in (["install"], ["uninstall"]):
            sys.exit("sessiond: standard output or standard error is closed")
        _replace_closed()  # what an agent program calls as its hook ends with 0 whatever happens
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a locale that cannot say it
    sys.exit(run(words))


def run(words: list[str]) -> int:
    """The exit status of a command line."""
    from sessiond.cli.frame import failures
    from sessiond.client.errors import ClientError

    try:
        status = _run(words)
        sys.stdout.flush()
        return status
    except failures.CommandFailed as failure:
        return failures.report(failure)
    except ClientError as error:
        return failures.report(failures.describe(error))
    except KeyboardInterrupt:
        return failures.INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe ended early, as in `sessiond list | head`.
        _drop_output()
        return failures.FAILED
    except OSError as error:
        # The disk behind standard output is full, or a file that the command line names cannot be read.
        where = f"{error.filename}: " if error.filename else "cannot write the output: "
        _drop_output()
        return failures.report(failures.CommandFailed(f"{where}{error.strerror or error}"))


def _replace_closed() -> None:
    """Let what is written to a closed stream go nowhere, and leave its number to nothing else."""
    for fd, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), fd)
            setattr(sys, name, open(fd, "w"))  # noqa: SIM115 - as long as the process


def _drop_output() -> None:
    """Discard what is still buffered, so that Python reports no error when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(words: list[str]) -> int:
    from sessiond.cli.frame import quick, registry

    if "_SESSIOND_COMPLETE" not in os.environ:
        found = quick.parse(words, registry.find)
        if found is not None:
            command, args = found
            return (command.run and command.run(args)) or 0
    from sessiond.cli.frame import tree

    return tree.run(words)
