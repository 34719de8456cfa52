"""The project's own rules that no linter checks: locks, lengths of files and functions, names, imports, and that the
pages of docs/ agree with the code."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from mutants.run import drawable_mutants, equivalents, listed_changes
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from support import docs_tables
from support.docs_references import in_code
from support.function_names import functions_to_call, says_what_it_does
from support.rows import check_each
from support.sampling import spread

import sessiond
from sessiond.methods.table import METHODS
from sessiond.model.row import Row
from sessiond.rpc.errors import status_of, wire_errors

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = sorted((ROOT / "sessiond").rglob("*.py"))
LOCKS = sorted(ROOT.glob("requirements*.lock"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


# All that is looked for here: statements, and handlers, which lie in statements alone. To walk through the expressions
# as well takes as long as to parse them.
LOOKED_FOR = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.Import, ast.ImportFrom)


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    found: list[ast.AST] = [tree_of(path)]
    for node in found:
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            found += getattr(node, field, ())
    return [node for node in found if isinstance(node, LOOKED_FOR)]


def pinned_versions(lock: Path) -> dict[str, Version]:
    lines = re.findall(r"^([a-z0-9][a-z0-9._-]*)==([^\s;]+)", lock.read_text(), re.MULTILINE)
    return {canonicalize_name(name): Version(version) for name, version in lines}


def requirements(*extras: str) -> Iterator[Requirement]:
    optional = PROJECT["optional-dependencies"]
    for line in [*PROJECT["dependencies"], *(line for extra in extras for line in optional[extra])]:
        requirement = Requirement(line)
        if requirement.name == "sessiond":
            yield from requirements(*requirement.extras)
        else:
            yield requirement


@check_each("lock", LOCKS, ids=name_of)
def test_a_lock_has_a_hash_for_every_package_and_no_address(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    assert not re.search(r"^\s*(-|--)?(i|index-url|extra-index-url|find-links|trusted-host)\b", text, re.MULTILINE)
    for entry in re.split(r"\n(?=\S)", text.strip()):
        assert re.match(r"[a-z0-9][a-z0-9._-]*==\S+( ; .+)? \\\n +--hash=sha256:[0-9a-f]{64}", entry), entry


def test_the_locks_satisfy_the_requirements_of_the_project() -> None:
    complete = pinned_versions(ROOT / "requirements.lock")
    testing = pinned_versions(ROOT / "requirements-test.lock")
    running = pinned_versions(ROOT / "requirements-run.lock")
    for requirement in requirements("dev"):
        assert complete[canonicalize_name(requirement.name)] in requirement.specifier, requirement
    for requirement in requirements("test"):
        assert testing[canonicalize_name(requirement.name)] in requirement.specifier, requirement
    for requirement in requirements():
        assert running[canonicalize_name(requirement.name)] in requirement.specifier, requirement
    linking = pinned_versions(ROOT / "requirements-link.lock")
    for requirement in requirements("link"):
        assert linking[canonicalize_name(requirement.name)] in requirement.specifier, requirement
    assert running.items() <= linking.items()
    page = pinned_versions(ROOT / "requirements-page.lock")
    for requirement in requirements("page"):
        assert page[canonicalize_name(requirement.name)] in requirement.specifier, requirement
    for lock in LOCKS:
        # What drives a browser is in no other lock.
        pinned = pinned_versions(lock)
        known = {**pinned, **complete} if lock.stem.endswith("-page") else complete
        assert pinned.items() <= known.items(), f"{lock.name} disagrees with requirements.lock"


def test_the_dev_group_is_the_dev_extra() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    assert groups == {"dev": ["sessiond[dev]"]}


def test_threads_are_started_in_one_module_only() -> None:
    """If no thread can be started, Trio raises a RuntimeError, which only `tasks.run_in_thread` handles."""
    assert [name_of(path) for path in SOURCES if "to_thread" in path.read_text()] == ["sessiond/tasks.py"]


def test_the_version_is_defined_in_the_package_only() -> None:
    assert "version" not in PROJECT
    assert PROJECT["dynamic"] == ["version"]
    assert Version(sessiond.__version__)


def test_the_build_server_runs_the_two_commands_of_the_readme() -> None:
    section = (ROOT / "README.md").read_text().partition("\n## Two commands\n")[2].partition("\n## ")[0]
    commands = [line.removeprefix("    ") for line in section.splitlines() if line.startswith("    ")]
    assert [command.rpartition(" && ")[2] for command in commands] == [
        ".venv-run/bin/sessiond demo",
        ".venv/bin/python -m pytest -n auto",
    ]
    shown = subprocess.run([ROOT / ".ci/run", "--commands"], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines() == commands


def test_no_file_is_longer_than_400_lines() -> None:
    long = {name_of(path): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: count for name, count in long.items() if count > 400} == {}


def test_no_function_is_longer_than_60_lines() -> None:
    long = {}
    for path in SOURCES:
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                count = (node.end_lineno or node.lineno) - node.lineno + 1
                if count > 60:
                    long[f"{name_of(path)}:{node.lineno} {node.name}"] = count
    assert long == {}


def test_every_module_has_a_docstring() -> None:
    silent = [path for path in SOURCES if path.read_text().strip() and not ast.get_docstring(tree_of(path))]
    assert [name_of(path) for path in silent] == []


def test_except_exception_occurs_in_four_modules_only() -> None:
    """Architecture, "Who owns which task": dispatch handles the errors of a request, the executor those of a run;
    `tasks` carries those of a worker thread over to whoever waits for it, and the committer, which fails already, tells
    all who wait.

    The client library is not checked, because the handlers that it calls are its users'.
    """
    catchers = set()
    for path in SOURCES:
        if path.is_relative_to(ROOT / "sessiond/client"):
            continue
        for node in nodes_of(path):
            caught = [node.type] if isinstance(node, ast.ExceptHandler) else []
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("suppress", "contextlib.suppress"):
                caught = list(node.args)
            if any(isinstance(one, ast.Name) and one.id == "Exception" for one in caught):
                catchers.add(name_of(path))
    own = {"sessiond/rpc/dispatch.py", "sessiond/runs/executor.py", "sessiond/tasks.py", "sessiond/store/committer.py"}
    assert catchers <= own


def test_every_method_has_a_test_file_of_its_name() -> None:
    methods = {path.stem for path in (ROOT / "sessiond/methods").glob("*.py") if "METHOD = " in path.read_text()}
    tests = {path.stem.removeprefix("test_") for path in (ROOT / "tests/methods").glob("test_*.py")}
    assert methods - tests == set()


def test_the_client_library_imports_the_standard_library_only() -> None:
    """Trap 9 of the architecture: imports are the start-up time of every command."""
    code = (
        "import sys; before = set(sys.modules); import sessiond.client; "
        "print(sorted({name.partition('.')[0] for name in set(sys.modules) - before}"
        " - sys.stdlib_module_names - {'sessiond'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_just_alone_shows_a_menu_in_which_every_recipe_is_explained() -> None:
    just = Path(sys.executable).with_name("just")
    if not just.exists():
        pytest.skip("just is not installed beside this Python")
    done = subprocess.run([just], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    recipes = dict(re.findall(r"^ +([a-z-]+)(?: \*?[A-Z]+(?:=\S+)?)? *(# .+)?$", done.stdout, re.MULTILINE))
    assert {"demo", "run", "test", "check", "bench", "install", "uninstall", "single-file", "man", "lock"} <= set(
        recipes
    )
    assert [name for name, comment in recipes.items() if not comment] == []


# Without the modules that have such references as examples.
CODE = sorted(file for room in ("sessiond", "tests") for file in (ROOT / room).rglob("*.py") if "docs" not in file.name)


def test_every_source_line_and_every_page_named_in_the_code_exists() -> None:
    pointers = [pointer for file in CODE for pointer in in_code(file)]
    wrong = [str(pointer) for pointer in pointers if pointer.problem is not None]
    assert not wrong, "\n".join(["these references do not resolve; the pages and their headings are in docs/:", *wrong])
    # Otherwise the search finds no references any more, for instance because docstrings are written in another way.
    assert len(pointers) > 100


@check_each("name", docs_tables.TABLES)
def test_every_table_generated_from_the_code_is_up_to_date(name: str) -> None:
    """Defaults and ranges of parameters, keys of the configuration, commands and their options."""
    page, table = docs_tables.TABLES[name]
    text = (docs_tables.DOCS / page).read_text(encoding="utf-8")
    assert docs_tables.with_table(text, name, table()) == text, f"docs/{page} is out of date: {docs_tables.UPDATE}"


def test_the_protocol_page_has_a_row_for_every_method_and_every_error() -> None:
    page = (docs_tables.DOCS / "protocol.md").read_text(encoding="utf-8")
    _, _, calls = page.partition("\n## Calls\n")
    calls, _, _ = calls.partition("\n## Events\n")
    cells = " ".join(row.split(" | ")[0] for row in calls.splitlines() if row.startswith("| "))
    # The page abbreviates a second name: `.unsubscribe` means `sessions.messages.unsubscribe`.
    named = set(re.findall(r"`([^`]+)`", cells.replace("`.unsubscribe`", "`sessions.messages.unsubscribe`")))
    assert {name for method in METHODS for name in (method.name, *method.aliases)} - named == set()
    rows = {
        slug: (int(code), int(status))
        for code, slug, status in re.findall(r"^\| (-\d+) \| `(\w+)` \| (\d+) \|", page, re.MULTILINE)
    }
    errors = {error["message"]: (error["code"], status_of(error["message"])) for error in wire_errors()}
    assert rows == errors


def test_the_protocol_page_names_every_field_of_a_sessions_row() -> None:
    page = (docs_tables.DOCS / "protocol.md").read_text(encoding="utf-8")
    found = re.search(r"\*\*The row of a session\*\*: `([^`]+)`", page)
    assert found is not None
    named = [name.strip() for name in found[1].replace("\n", " ").split(",")]
    assert [name.rstrip("?") for name in named] == [field.encode_name for field in msgspec.structs.fields(Row)]


def test_every_class_name_is_unique() -> None:
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{name_of(path)}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_values_of_any_type_are_decoded_by_the_lenient_decoders_alone() -> None:
    """Some numbers take msgspec itself so long that one line of them stops the event loop for seconds."""
    found = [
        f"{name_of(path)}:{node.lineno}"
        for path in SOURCES
        if name_of(path) != "sessiond/model/lax.py"
        for node in nodes_of(path)
        if isinstance(node, ast.Call)
        and (
            (ast.unparse(node.func) == "msgspec.json.decode" and not node.keywords)
            or (ast.unparse(node.func) == "msgspec.json.Decoder" and not node.args)
            or (ast.unparse(node.func) == "msgspec.json.Decoder" and "/dialects/" in path.as_posix())
        )
    ]
    assert found == []


def test_every_listed_mutant_changes_exactly_one_place() -> None:
    """Otherwise `just mutants` can only report it as stale, and nobody sees that something is not tried any more."""
    listed = list(listed_changes())
    for one in listed:
        text = (ROOT / "sessiond" / one.file).read_text()
        assert text.count(one.old) == 1, f"{one.name}: anchor it to the present text of sessiond/{one.file}"
        assert all((ROOT / test.partition("::")[0]).exists() for test in one.tests), one.name
    for one in spread(listed, 40):
        ast.parse((ROOT / "sessiond" / one.file).read_text().replace(one.old, one.new))  # else any test "notices" it
    names = [(one.file, one.name) for one in listed]
    assert len(set(names)) == len(names) > 100


def test_every_mutant_listed_as_equivalent_exists() -> None:
    listed = {(f"sessiond/{one.file}", one.name) for one in listed_changes()}
    for file, name in equivalents().keys() - listed:
        drawable = {mutant.name for mutant in drawable_mutants({file: (ROOT / file).read_text()})}
        assert name in drawable, f"{file}: {name}"


def imports_of(path: Path, modules: set[str]) -> set[str]:
    """The modules of sessiond that a file imports: at its top, in functions, or for type checkers only."""
    found = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            # A name that is not a module is defined in the module from which it is imported.
            found |= names & modules | ({node.module} if names - modules else set())
    return found & modules


def import_circle(imports: dict[str, set[str]]) -> list[str]:
    """The modules that import each other in a circle, or import such modules."""
    left = {module: set(others) for module, others in imports.items()}
    while leaves := [module for module, others in left.items() if not others & left.keys()]:
        for module in leaves:
            del left[module]
    return sorted(left)


def test_no_modules_import_each_other_in_a_circle() -> None:
    """import-linter checks packages only, and ignores `if TYPE_CHECKING:`."""
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in SOURCES}
    imports = {module: imports_of(path, set(paths)) for module, path in paths.items()}
    assert len(imports["sessiond.daemon.app"]) > 10, "imports are found"
    assert import_circle(imports) == []


def test_a_circle_of_imports_is_found() -> None:
    assert import_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]
    assert import_circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_every_function_name_says_what_a_call_does() -> None:
    found = [
        f"{name_of(path)}:{node.lineno} {node.name}"
        for path in SOURCES
        for node in functions_to_call(nodes_of(path))
        if not says_what_it_does(node.name)
    ]
    assert found == [], "a name must have a verb, or a noun for the result"


@check_each("name", ["made", "_told_of", "of", "_unread", "hung_up", "freshened", "before", "lost_from"])
def test_a_name_of_participles_and_prepositions_alone_is_rejected(name: str) -> None:
    assert not says_what_it_does(name)


@check_each("name", ["feed", "read", "on_gone", "has_hung_up", "lost_end", "__init__", "size_of", "cut"])
def test_verbs_nouns_and_callbacks_are_accepted_as_names(name: str) -> None:
    assert says_what_it_does(name)


def test_each_test_that_is_skipped_by_default_names_one_that_holds_its_promise() -> None:
    texts = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    named = {name for text in texts for name in re.findall(r'^@whole_only\("(\w+)"\)$', text, re.MULTILINE)}
    defined = {name for text in texts for name in re.findall(r"^(?:async )?def (test_\w+)\(", text, re.MULTILINE)}
    assert named - defined == set() and named


# The lowest versions without a known vulnerability.
SAFE_FROM = {"cbor2": "5.9", "cryptography": "50.0.0", "h11": "0.16", "click": "8.3.3"}


def test_the_unit_forbids_core_files_and_dependencies_exclude_vulnerable_versions() -> None:
    """A core file would contain the signing key."""
    assert "\nLimitCORE=0\n" in (ROOT / "systemd" / "sessiond.service").read_text()
    floors = {
        canonicalize_name(one.name): Version(bound.version)
        for one in requirements()
        for bound in one.specifier
        if bound.operator == ">="
    }
    assert floors.keys() == {canonicalize_name(one.name) for one in requirements()}
    assert {name: floors[name] >= Version(safe) for name, safe in SAFE_FROM.items()} == dict.fromkeys(SAFE_FROM, True)
