"""The exit code of the daemon, and the import of its logger."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable

import pytest
from support.rows import check_each

from sessiond.daemon.lifecycle import _exit_code
from sessiond.errors import ALLOW_THREADS, ConfigError, NoThread, StoreGone, StoreInUse

GONE, IN_USE, BAD = StoreGone("it is gone"), StoreInUse("it is in use"), ConfigError("it cannot be read")


def together(*errors: Exception) -> ExceptionGroup[Exception]:
    return ExceptionGroup("", errors)


@check_each(
    ("error", "code", "text"),
    [
        (BAD, 78, "it cannot be read"),
        (together(together(IN_USE)), 69, "it is in use"),
        (together(together(NoThread())), 71, f"no thread can be started: {ALLOW_THREADS}"),
        (together(BAD, GONE), 74, "it is gone"),
        (together(together(GONE), together(BAD, BAD)), 74, "it is gone"),
    ],
)
def test_failures_at_once_give_one_exit_code(
    error: Exception, code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _exit_code(error) == code
    assert capsys.readouterr().err == f"sessiond: {text}\n"


def test_an_unexpected_exception_is_raised_whatever_came_with_it() -> None:
    several = together(BAD, together(ValueError("a bug")))
    with pytest.raises(ExceptionGroup) as raised:
        _exit_code(several)
    assert raised.value is several
    with pytest.raises(ValueError, match="a bug"):
        _exit_code(together(together(ValueError("a bug"))))


@pytest.mark.parametrize("wrap", [together, lambda error: error])
def test_an_unexpected_error_of_the_system_is_not_taken_for_one_of_the_output(
    wrap: Callable[[Exception], Exception],
) -> None:
    bug = OSError(errno.EMFILE, "Too many open files")
    with pytest.raises(RuntimeError, match="the daemon has ended") as raised:
        _exit_code(wrap(bug))
    assert raised.value.__cause__ is bug


def test_a_logger_that_needs_what_is_kept_from_it_gets_it() -> None:
    program = """
import sys

class Needy:
    def find_spec(self, name, path=None, target=None):
        if name == "structlog.dev" and "asyncio" in sys.modules and not hasattr(sys.modules["asyncio"], "run"):
            raise AttributeError("this version needs asyncio")

sys.meta_path.insert(0, Needy())
import sessiond.daemon
assert not any(name.startswith("structlog") for name in sys.modules)
import structlog
structlog.get_logger().info("it", works=True)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "works" in done.stdout, done.stderr
