"""How strong the tests are: change the code in one place, run the tests that reach it, and see whether one fails.

    just mutants                  the listed ones (`tests/mutants/*.toml`) and a hundred random ones
    just mutants --room store     of one package;  --drawn 0 --only adopt: by a part of their names
    just mutants --seed 2         another random hundred

A change that no test notices shows a missing test, or changes no behaviour; the latter are listed with the reason in
`equivalent.toml`. Works in a copy of the tree, one change at a time; a few seconds each, after some minutes in which it
records which test reaches which line.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import signal
import sys
import time
import tomllib
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mutants.drawing import Change, changes_of, draw

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ROOMS = ("store", "runs", "policy", "auth", "attachments", "events", "rpc", "questions")
# The folders of tests that may notice a change in these packages.
FOLDERS = (*ROOMS, "sessions", "subagents", "conversations", "delivery", "methods", "transports", "trust")
# Tests that work in other processes, so that their lines cannot be recorded. They run last.
UNMEASURED = {
    "store": ("tests/store/test_single_calls.py",),
    "runs": ("tests/runs/test_spawn_journal.py",),
    "attachments": ("tests/attachments/test_materialize.py", "tests/attachments/test_remove.py"),
    "delivery": ("tests/delivery/test_outbox.py",),
}
BUDGET_S, HANGS_AFTER_S = 20.0, 90.0


class Mutant(NamedTuple):
    """One changed file. `lines` are the changed lines of the original; `tests` are known to notice it and run first."""

    name: str
    file: str
    text: str
    lines: range
    shown: str
    tests: tuple[str, ...] = ()

    @property
    def room(self) -> str:
        return self.file.split("/")[1]


class TestCoverage:
    """Which tests reach each line, and how long each test takes."""

    __test__ = False

    def __init__(self, paths: Iterable[Path]) -> None:
        self.seconds: dict[str, float] = {}
        self._reached: dict[str, dict[str, list[str]]] = {}
        for path in paths:
            recorded = json.loads(path.read_text())
            self.seconds |= recorded["seconds"]
            for file, lines in recorded["reached"].items():
                known = self._reached.setdefault(file, {})
                for line, tests in lines.items():
                    known.setdefault(line, []).extend(tests)

    def tests_for(self, mutant: Mutant) -> list[str]:
        """The tests to run within the time budget: the quickest first, those of the mutant's own package preferred."""
        reached = self._reached.get(mutant.file, {})
        found = {test for line in mutant.lines for test in reached.get(str(line), ())}
        if not found:  # a constant or a default, which is read when the module is imported
            found = {test for tests in reached.values() for test in tests}
        own = f"tests/{mutant.room}/"
        chosen: list[str] = []
        left_s = BUDGET_S
        for test in sorted(found, key=lambda test: (self.seconds[test] / (5 if test.startswith(own) else 1), test)):
            left_s -= self.seconds[test]
            if left_s < 0:
                break
            chosen.append(test)
        return chosen


class ListedChange(NamedTuple):
    """A mutant of the lists: `old` occurs once in a file of the package, and becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = ()


def listed_changes() -> Iterator[ListedChange]:
    """The entries of the lists."""
    for path in sorted(HERE.glob("*.toml")):
        for one in tomllib.loads(path.read_text()).get("mutant", []):
            yield ListedChange(one["name"], one["file"], one["old"], one["new"], tuple(one.get("tests", ())))


def read_listed() -> Iterator[Mutant]:
    """The mutants of the lists. `old` must occur once in its file; otherwise the mutant is reported as stale."""
    for one in listed_changes():
        file = f"sessiond/{one.file}"
        text = (ROOT / file).read_text()
        if text.count(one.old) != 1:
            print(f"stale     {one.name}: its text occurs {text.count(one.old)} times in {file}", flush=True)
            continue
        at = text.index(one.old)
        first = text.count("\n", 0, at) + 1
        lines = range(first, first + one.old.rstrip("\n").count("\n") + 1)
        yield Mutant(one.name, file, text.replace(one.old, one.new), lines, f"{file}:{first}", one.tests)


def draw_mutants(count: int, seed: int) -> Iterator[Mutant]:
    """Random mutants; the same ones for the same code and seed."""
    paths = [path for room in ROOMS for path in (ROOT / "sessiond" / room).glob("*.py")]
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in paths}
    for change in draw(sources, count, seed):
        yield _mutant_of(change, sources[change.file])


def drawable_mutants(sources: Mapping[str, str]) -> Iterator[Mutant]:
    """Every mutant of these files that may be drawn."""
    for file, text in sources.items():
        for change in changes_of(file, text):
            yield _mutant_of(change, text)


def _mutant_of(change: Change, text: str) -> Mutant:
    old = " ".join(text[change.begin : change.end].split())
    changed = text[: change.begin] + change.new + text[change.end :]
    name = f"{Path(change.file).stem}:{old[:60]} -> {' '.join(change.new.split())[:60]}"
    return Mutant(name, change.file, changed, range(change.first, change.last + 1), f"{change.file}:{change.first}")


def equivalents() -> dict[tuple[str, str], str]:
    """Why a mutant changes no behaviour, by file and name."""
    listed = tomllib.loads((HERE / "equivalent.toml").read_text())
    return {(f"sessiond/{one['file']}", one["name"]): one["why"] for one in listed.get("equivalent", [])}


def run_in_fork(work: Callable[[], int], output: Path, tree: Path, patience_s: float) -> int | None:
    """Run `work` in a forked process in the tree; its exit code, or None if it did not end in time."""
    child = os.fork()
    if not child:
        os.setsid()
        os.chdir(tree)
        out = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.environ["PYTHONPATH"] = f"{tree}:{tree}/tests"
        sys.path[:0] = [str(tree), str(tree / "tests")]
        code = 70
        try:
            code = work()
        except BaseException:  # noqa: BLE001 - the child must not run the parent's code
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    deadline = time.monotonic() + patience_s
    ended: int | None = None
    while ended is None and time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            ended = os.waitstatus_to_exitcode(status)
        else:
            time.sleep(0.02)  # noqa: TID251 - at a process border, with a deadline
    # Also daemons that a test started and did not end.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if ended is None:
        os.waitpid(child, 0)
    return ended


def record_coverage(tree: Path, folder: str, path: Path) -> None:
    """Run the tests of a folder without a change, and record which lines each reaches. Failing tests are left out."""

    def work() -> int:
        import coverage
        import pytest

        meter = coverage.Coverage(data_file=None, source=[str(tree / "sessiond")], config_file=False)
        seconds: dict[str, float] = {}
        failed: set[str] = set()

        class Recorder:
            @pytest.hookimpl(hookwrapper=True)
            def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
                meter.switch_context(item.nodeid)
                begun = time.perf_counter()
                yield
                seconds[item.nodeid] = time.perf_counter() - begun
                meter.switch_context("")

            def pytest_runtest_logreport(self, report: Any) -> None:
                if not report.passed:
                    failed.add(report.nodeid)

        meter.start()
        options = ["-q", "-p", "no:cacheprovider", "-m", "not system and not benchmark"]
        pytest.main([*options, f"tests/{folder}"], [Recorder()])
        meter.stop()
        data = meter.get_data()
        reached: dict[str, dict[str, list[str]]] = {}
        for file in data.measured_files():
            lines = data.contexts_by_lineno(file)
            known = {str(line): sorted(set(tests) - failed - {""}) for line, tests in lines.items()}
            reached[str(Path(file).relative_to(tree))] = known
        path.write_text(json.dumps({"seconds": seconds, "reached": reached}))
        print(f"tests/{folder}: {len(seconds)} tests, of which failed or were skipped: {sorted(failed)}")
        return 0

    output = path.with_suffix(".out")
    if run_in_fork(work, output, tree, 3600) != 0:
        sys.exit(f"the tests could not be run: {output}")
    print(output.read_text().splitlines()[-1])


class Judge:
    """Runs the tests of one mutant after the other, in a copy of the tree."""

    def __init__(self, tree: Path, tests: TestCoverage) -> None:
        self._tree, self._tests = tree, tests
        self._moment = itertools.count(int(time.time()))

    def judge(self, mutant: Mutant) -> tuple[str, str]:
        """`killed`, `alive` or `hung`, and the test that failed."""
        path = self._tree / mutant.file
        whole = path.read_text()
        reached, last = self._tests.tests_for(mutant), UNMEASURED.get(mutant.room, ())
        try:
            self._write(path, mutant.text)
            verdict, failed_test = "alive", ""
            for tests in filter(None, (mutant.tests, reached, last)):
                verdict, failed_test = self._run(tests)
                if verdict != "alive":
                    break
        finally:
            self._write(path, whole)
        return verdict, failed_test or f"{len(reached)} tests reach it"

    def _run(self, tests: Sequence[str]) -> tuple[str, str]:
        output = self._tree.parent / "output.txt"

        def work() -> int:
            import pytest

            options = ["-x", "-q", "--tb=line", "-p", "no:cacheprovider", "-m", "not benchmark"]
            return int(pytest.main([*options, *tests]))

        code = run_in_fork(work, output, self._tree, HANGS_AFTER_S)
        lines = output.read_text(errors="replace").splitlines()
        failures = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        verdict = "hung" if code is None else "alive" if code == 0 else "killed"
        return verdict, failures[0] if failures else ""

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text)
        # Python compares the time in seconds and the size to decide whether a compiled file is current.
        moment = next(self._moment)
        os.utime(path, (moment, moment))


def copy_tree(to: Path) -> Path:
    """A copy of the tree, in which files can be changed."""
    shutil.rmtree(to, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", ".*cache*", ".venv*", ".git", ".hypothesis", "dist", "build")
    shutil.copytree(ROOT, to, ignore=ignored)
    return to


def import_once() -> None:
    """Import the libraries of the tests before forking, since no mutant changes them."""
    import cbor2
    import coverage
    import cryptography.hazmat.primitives.asymmetric.ed25519
    import h11
    import msgspec
    import pytest
    import structlog
    import trio.testing
    import trio_websocket

    assert all((cbor2, coverage, cryptography, h11, msgspec, pytest, structlog, trio, trio_websocket))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--drawn", type=int, default=100, help="how many random ones")
    parser.add_argument("--seed", type=int, default=12)
    parser.add_argument("--no-list", action="store_true", help="without the listed ones")
    parser.add_argument("--room", choices=ROOMS)
    parser.add_argument("--only", default="", help="only those with this in their name")
    parser.add_argument("--scratch", type=Path, default=Path("/tmp/sessiond-mutants"))
    parser.add_argument("--learn", action="store_true", help="record again which test reaches which line")
    parser.add_argument("--folders", nargs="+", default=FOLDERS, help="the folders of tests to run")
    parser.add_argument("--show", action="store_true", help="print them and run nothing")
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    mutants = [] if asked.no_list else list(read_listed())
    mutants += draw_mutants(asked.drawn, asked.seed)
    mutants = [one for one in mutants if asked.room in (None, one.room) and asked.only in one.name]
    if asked.show:
        for one in mutants:
            print(f"{one.shown}  {one.name}")
        return
    asked.scratch.mkdir(parents=True, exist_ok=True)
    import_once()
    tree = copy_tree(asked.scratch / "tree")
    known = {folder: asked.scratch / f"{folder}.json" for folder in asked.folders}
    for folder, path in known.items():
        if asked.learn or not path.exists():
            record_coverage(tree, folder, path)
    judge, harmless = Judge(tree, TestCoverage(known.values())), equivalents()
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    with open(asked.scratch / "results.txt", "a") as log:
        for one in mutants:
            begun = time.monotonic()
            verdict, failed_test = judge.judge(one)
            why = harmless.get((one.file, one.name))
            if verdict == "alive" and why is not None:
                verdict, failed_test = "equal", why
            counts[one.room][verdict] += 1
            line = f"{verdict:<9} {time.monotonic() - begun:4.0f} s  {one.shown}  {one.name}  [{failed_test}]"
            for out in (sys.stdout, log):
                print(line, file=out, flush=True)
    total: Counter[str] = Counter()
    for room, count in counts.items():
        print(f"{room:<12} {dict(count)}")
        total += count
    dead, alive = total["killed"] + total["hung"], total["alive"]
    print(f"{'all':<12} {dict(total)}: {100 * dead / max(1, dead + alive):.1f} % of those that matter")


if __name__ == "__main__":
    main()
