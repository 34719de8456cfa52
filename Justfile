# What one does with this checkout. `just` alone shows the menu; the tools come with the virtual environment,
# so `pipx install rust-just` (or `.venv/bin/just` after the first set-up) is all that is needed to begin.

venv := env("SESSIOND_VENV", justfile_directory() / ".venv")
bin := venv / "bin"
python := env("SESSIOND_PYTHON", "python3")

[private]
default:
    @"{{ just_executable() }}" --list --unsorted

# The virtual environment, made anew only when the lock file has changed.
[private]
_venv:
    #!/usr/bin/env bash
    set -euo pipefail
    if ! cmp -s requirements.lock "{{ venv }}/requirements.lock"; then
        echo "setting up {{ venv }} ..." >&2
        "{{ python }}" -m venv "{{ venv }}"
        "{{ bin }}/pip" install -q --require-hashes -r requirements.lock
        "{{ bin }}/pip" install -q --no-deps --no-build-isolation -e .
        cp requirements.lock "{{ venv }}/requirements.lock"
    fi

# two agents, a message, a spawn with an attachment: shown live on a throw-away store
[group('use it')]
demo *ARGS: _venv
    @"{{ bin }}/sessiond" demo {{ ARGS }}

# the daemon in the foreground, from this checkout: `just run --store /tmp/try`
[group('use it')]
run *ARGS: _venv
    @"{{ bin }}/sessiond" serve {{ ARGS }}

# any other command of this checkout: `just sessiond list --json`
[group('use it')]
sessiond *ARGS: _venv
    @"{{ bin }}/sessiond" {{ ARGS }}

# the tests, all or some: `just test tests/store -k torn`; sweeps whole: `SESSIOND_TESTS=whole just test`
[group('work on it')]
test *ARGS: _venv
    @"{{ bin }}/python" -m pytest {{ if ARGS == "" { "-n auto" } else { ARGS } }}

# what must hold before a commit: style, types, layers, tests
[group('work on it')]
check: lint test

# style, types and layers alone (seconds)
[group('work on it')]
lint: _venv
    "{{ bin }}/ruff" check
    "{{ bin }}/mypy"
    "{{ bin }}/lint-imports"

# types, style and lint of the page and its tests (needs Node.js; the tools come by npm)
[group('work on it')]
lint-page: _node
    node_modules/.bin/tsc -p .
    node_modules/.bin/biome check

# let biome format the page and repair what it can
[group('work on it')]
fix-page: _node
    node_modules/.bin/biome check --write

# The tools of the page, installed anew only when package.json, which has their exact versions, has changed.
[private]
_node:
    #!/usr/bin/env bash
    set -euo pipefail
    if ! cmp -s package.json node_modules/.package.json; then
        npm install --no-package-lock --ignore-scripts --no-audit --no-fund --loglevel=error
        cp package.json node_modules/.package.json
    fi

# let ruff repair what it can
[group('work on it')]
fix: _venv
    "{{ bin }}/ruff" check --fix

# which lines the tests never reach
[group('work on it')]
coverage *ARGS: _venv
    "{{ bin }}/coverage" erase
    "{{ bin }}/coverage" run -m pytest {{ ARGS }}
    "{{ bin }}/coverage" combine -q
    "{{ bin }}/coverage" report

# how strong the tests are: small changes of the code, one at a time, that some test should notice (an hour)
[group('work on it')]
mutants *ARGS: _venv
    env -u PYTHONDONTWRITEBYTECODE PYTHONPATH=tests nice "{{ bin }}/python" -m mutants.run {{ ARGS }}

# every benchmark, each as a ratio to its own baseline of the same run (minutes)
[group('work on it')]
bench *ARGS: _venv
    env -u PYTHONDONTWRITEBYTECODE "{{ bin }}/python" -m pytest -n 0 tests/benchmarks tests/trust/test_load.py tests/sources/test_crowds.py -m benchmark -s -q {{ ARGS }}

# the tests that install and run real agent programs (large downloads)
[group('work on it')]
test-agents *ARGS: _venv
    "{{ bin }}/python" -m pytest -m agents {{ ARGS }}

# the page in the system's Chromium: how it behaves, how quick it is (minutes; tools come by pip and npm)
[group('work on it')]
test-page *ARGS: _venv _node
    "{{ bin }}/pip" install -q --require-hashes -r requirements-page.lock
    "{{ bin }}/python" -m pytest -n 0 -m page tests/page {{ ARGS }}

# the tests that build the single file and install under a systemd of their own
[group('work on it')]
test-packaging *ARGS: _venv
    "{{ bin }}/python" -m pytest -m packaging {{ ARGS }}

# what the build server runs: a fresh environment and everything
[group('work on it')]
ci:
    .ci/run

# this checkout for the user's systemd: program, units, completion, man page (`--link`: what `sessiond link` needs, too)
[group('ship it')]
install *ARGS:
    systemd/install {{ ARGS }}

# take away what `just install` put in place; the store and the configuration stay
[group('ship it')]
uninstall:
    systemd/uninstall

# dist/sessiond: one executable file that needs only Python (3.11 to 3.14, on this kind of machine)
[group('ship it')]
single-file OUT="dist/sessiond": _venv
    #!{{ bin }}/python
    import json, pathlib, shutil, subprocess, sys, tempfile
    from packaging import markers, tags

    out = pathlib.Path("{{ OUT }}")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        command = ["{{ bin }}/pex", "-r", "requirements-run.lock", "-P", "sessiond", "-m", "sessiond", "-o", str(out)]
        # --venv: unpacked once, then as quick as if it were installed. --sh-boot: no Python starts to find a Python.
        command += ["--venv", "--sh-boot", "--no-build"]
        # The units, which stand in the package where a wheel has them.
        units = pathlib.Path(scratch, "src", "sessiond", "systemd")
        units.mkdir(parents=True)
        for unit in pathlib.Path("systemd").glob("sessiond*"):
            shutil.copy(unit, units)
        command += ["-D", str(units.parent.parent)]
        machines = list(tags.platform_tags())
        for minor in (11, 12, 13, 14):
            python, full, abi = f"3.{minor}", f"3.{minor}.0", f"cp3{minor}"
            known = [*tags.cpython_tags((3, minor), [abi], machines), *tags.compatible_tags((3, minor), abi, machines)]
            environment = markers.default_environment() | {
                "python_version": python, "python_full_version": full, "implementation_version": full,
            }
            target = pathlib.Path(scratch, f"{minor}.json")
            target.write_text(json.dumps({"marker_environment": environment, "compatible_tags": list(map(str, known))}))
            command += ["--complete-platform", str(target)]
        built = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if built.returncode != 0:
        sys.exit(built.stdout)
    # Said before the seconds that unpacking takes; and a Python that is too old is no traceback. A zip may have any head.
    first_start = """
    for python in ${PEX_PYTHON:-} python3.11 python3.12 python3.13 python3.14 python3 python; do
        if "${python}" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; then
            DEFAULT_PYTHON="$(command -v "${python}")"
            break
        fi
    done
    if [ -z "${DEFAULT_PYTHON}" ]; then
        echo >&2 "sessiond needs Python 3.11, 3.12, 3.13 or 3.14, and there is none in the PATH."
        exit 1
    fi
    if [ ! -d "${INSTALLED_PEX}" ]; then
        echo >&2 "sessiond unpacks itself into ${PEX_ROOT}, this once ..."
    fi
    """
    head, mark, rest = out.read_bytes().partition(b"\nfind_python() {")
    if not mark:
        sys.exit("pex begins its files otherwise: look where the words for the first start belong")
    out.write_bytes(head + first_start.encode() + mark + rest)
    print(f"wrote {out}, {out.stat().st_size / 1e6:.0f} MB")

# dist/*.whl and the source archive
[group('ship it')]
wheel: _venv
    "{{ bin }}/hatchling" build

# dist/sessiond.1, from the command tree
[group('ship it')]
man: _venv
    @mkdir -p dist
    @"{{ bin }}/python" -c 'from sessiond.cli.frame import man; print(man.page(), end="")' > dist/sessiond.1
    @echo "wrote dist/sessiond.1; read it with: man -l dist/sessiond.1"

# the newest versions that pyproject.toml allows, with hashes and without any index's address
[group('ship it')]
lock *ARGS: _venv
    "{{ bin }}/uv" pip compile {{ lock_flags }} {{ ARGS }} --extra dev pyproject.toml -o requirements.lock
    "{{ bin }}/uv" pip compile {{ lock_flags }} -c requirements.lock --extra test pyproject.toml -o requirements-test.lock
    "{{ bin }}/uv" pip compile {{ lock_flags }} -c requirements.lock --extra page pyproject.toml -o requirements-page.lock
    "{{ bin }}/uv" pip compile {{ lock_flags }} -c requirements.lock pyproject.toml -o requirements-run.lock
    "{{ bin }}/uv" pip compile {{ lock_flags }} -c requirements.lock --extra link pyproject.toml -o requirements-link.lock
    echo hatchling | "{{ bin }}/uv" pip compile {{ lock_flags }} -c requirements.lock - -o requirements-build.lock

lock_flags := "-q --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate"
