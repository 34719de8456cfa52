"""`sessiond unit`: let systemd run the installed program, with completion and manual; and take all of it away again.

For a program that `uv tool`, `pipx` or `pip` installed, and for the single file; `just install` of a checkout calls it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from sessiond.cli.completion import text_for
from sessiond.cli.frame.command import JSON, Args, Command, Option
from sessiond.cli.frame.failures import FAILED, USAGE, CommandFailed
from sessiond.cli.terminal.output import as_json, lines
from sessiond.errors import reason_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_DAEMON_UNITS = ("sessiond.service", "sessiond.socket", "sessiond-agent.socket")
# Started only where the configuration names other machines.
_LINK_UNIT = "sessiond-link.service"
UNITS = (*_DAEMON_UNITS, _LINK_UNIT)
_PROGRAM_OF_UNIT = "ExecStart=%h/.local/bin/sessiond "
_NO_NAMESPACES = """\
# This machine lets users make no user namespaces, so a user unit can have no file system of its own either.
[Service]
PrivateUsers=no
ProtectSystem=no
ProtectControlGroups=no
ProtectClock=no
ProtectKernelModules=no
CapabilityBoundingSet=~
"""


class InstalledFiles:
    """Where the files of a user go: units, completions and the manual."""

    def __init__(self, environ: dict[str, str]) -> None:
        self.home = Path(environ.get("HOME") or Path.home())
        data = Path(environ.get("XDG_DATA_HOME") or self.home / ".local/share")
        self.config = Path(environ.get("XDG_CONFIG_HOME") or self.home / ".config")
        self.state = Path(environ.get("XDG_STATE_HOME") or self.home / ".local/state")
        self.units = self.config / "systemd/user"
        self.fewer_walls = self.units / "sessiond.service.d/no-user-namespace.conf"
        self.completions = {
            "bash": data / "bash-completion/completions/sessiond",
            "zsh": data / "zsh/site-functions/_sessiond",
            "fish": self.config / "fish/completions/sessiond.fish",
        }
        self.manual = data / "man/man1/sessiond.1"
        # A line each. `systemd/install` and `systemd/uninstall` know it, too.
        self.made_folders = data / "sessiond/made-folders"

    def every(self) -> Iterator[Path]:
        yield from (self.units / name for name in UNITS)
        yield from (self.fewer_walls, *self.completions.values(), self.manual)

    def short_path(self, path: Path) -> str:
        """`path` as people write it."""
        return f"~/{path.relative_to(self.home)}" if path.is_relative_to(self.home) else str(path)


def run(args: Args) -> int | None:
    if args.install and args.uninstall:
        raise CommandFailed("--install and --uninstall exclude each other", status=USAGE)
    files = InstalledFiles(dict(os.environ))
    if args.uninstall:
        _uninstall(files)
        return None
    texts = _unit_texts(files)
    if args.install:
        _install(files, texts)
    elif args.json:
        as_json({str(files.units / name): text for name, text in texts.items()})
    else:
        for name, text in texts.items():
            lines([f"# {files.short_path(files.units / name)}", text])
    return None


def _unit_texts(files: InstalledFiles) -> dict[str, str]:
    """The units by name; the service starts the program that runs this command."""
    here = Path(__file__).resolve()
    folders = (here.parents[1] / "systemd", here.parents[2] / "systemd")  # in a wheel, and in a checkout
    folder = next((each for each in folders if (each / UNITS[0]).is_file()), None)
    if folder is None:
        raise CommandFailed(
            "this installation of sessiond has no units",
            hint="install it anew from its wheel: uv tool install --reinstall sessiond",
            status=FAILED,
        )
    texts = {name: (folder / name).read_text("utf-8") for name in UNITS}
    words = " ".join(_quote(word, files.home) for word in _program())
    for name in (UNITS[0], _LINK_UNIT):
        assert _PROGRAM_OF_UNIT in texts[name]
        texts[name] = texts[name].replace(_PROGRAM_OF_UNIT, f"ExecStart={words} ")
    return texts


def _program() -> list[str]:
    """The words that start this very program: as it was called, not where a link of it leads to today."""
    packed = os.environ.get("PEX")  # the single file, which runs from where it is unpacked
    called = packed or (sys.argv[0] if os.sep in sys.argv[0] else shutil.which("sessiond"))
    if called and Path(called).name != "__main__.py" and os.access(called, os.X_OK):
        return [os.path.abspath(called)]  # not `resolve`: an upgrade changes where a link leads
    return [sys.executable, "-m", "sessiond"]


def _quote(word: str, home: Path) -> str:
    """A word of ExecStart; below the home folder with `%h`, so that the unit serves if the folder moves."""
    begin = ""
    if Path(word).is_relative_to(home) and str(home) != "/":
        begin, word = "%h", word[len(str(home)) :]
    for char, instead in (("\\", "\\\\"), ("%", "%%"), ("$", "$$"), ('"', '\\"')):
        word = word.replace(char, instead)
    return f'"{begin}{word}"' if any(char.isspace() or char in "\"'\\;" for char in word) else begin + word


def _install(files: InstalledFiles, texts: dict[str, str]) -> None:
    try:
        may_make_namespaces = _may_make_namespaces()
        unneeded = {files.fewer_walls} if may_make_namespaces else set[Path]()
        _make_folders_of(files, [path for path in files.every() if path not in unneeded])
        for name, text in texts.items():
            _write(files.units / name, text)
        lines([f"units        {files.short_path(files.units)}/{', '.join(texts)}"])
        if may_make_namespaces:
            files.fewer_walls.unlink(missing_ok=True)
        else:
            _write(files.fewer_walls, _NO_NAMESPACES)
            lines([f"             {files.short_path(files.fewer_walls)}: no user namespaces here, so fewer walls"])
        for shell, path in files.completions.items():
            _write(path, text_for(shell))
            lines([f"completion   {files.short_path(path)}"])
        _write(files.manual, text_for("man"))
        lines([f"manual       {files.short_path(files.manual)}"])
    except OSError as error:
        where = getattr(error, "filename", None) or files.units
        raise CommandFailed(f"{where} cannot be written: {reason_of(error)}", status=FAILED) from None
    _start()


def _start() -> None:
    if not _systemctl("daemon-reload"):
        lines(["systemd      there is no user manager here; start it yourself: sessiond serve"])
        return
    units = UNITS if _names_machines() else _DAEMON_UNITS
    if not _systemctl("enable", "-q", *units) or not _systemctl("restart", *reversed(units)):
        raise CommandFailed(
            "systemd could not start sessiond", hint="why: systemctl --user status sessiond", status=FAILED
        )
    lines(["systemd      enabled and started; see: systemctl --user status sessiond"])
    if units == _DAEMON_UNITS:
        lines(["             with other machines in the configuration: systemctl --user enable --now sessiond-link"])
    asked = ["loginctl", "show-user", str(os.getuid()), "--property=Linger", "--value"]
    if _output_of(asked) == "no":
        lines(["             it ends when you log out; to keep it: loginctl enable-linger"])


def _names_machines() -> bool:
    """Whether there is something to link with. A configuration with a mistake is the daemon's to complain of."""
    from sessiond.config.settings import load
    from sessiond.errors import ConfigError

    try:
        return bool(load().link.peers)
    except ConfigError:
        return False


def _uninstall(files: InstalledFiles) -> None:
    if _systemctl("daemon-reload"):
        _systemctl("disable", "-q", "--now", *reversed(UNITS))
    try:
        for path in files.every():
            if path.is_symlink() or path.exists():
                path.unlink()
                lines([f"removed      {files.short_path(path)}"])
        _remove_made_folders(files)
    except OSError as error:
        raise CommandFailed(f"{error.filename} cannot be removed: {reason_of(error)}", status=FAILED) from None
    _systemctl("daemon-reload")
    for what, where in (("sessions", files.state), ("configuration", files.config)):
        if (folder := where / "sessiond").exists():
            lines([f"kept         the {what} in {files.short_path(folder)}"])


def _write(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text.rstrip("\n") + "\n", "utf-8")
    beside.replace(path)


def _make_folders_of(files: InstalledFiles, paths: Iterable[Path]) -> None:
    """Make the folders of these files, and note those that were not there: the others are not ours to remove."""
    notes = files.made_folders
    folders = {folder for path in (*paths, notes) for folder in path.parents}
    made = sorted(folder for folder in folders if not folder.is_dir())
    for folder in made:
        folder.mkdir(exist_ok=True)
    noted = dict.fromkeys([*_noted_folders(files), *(str(folder) for folder in made if "\n" not in str(folder))])
    if noted:
        notes.write_bytes(b"".join(os.fsencode(f"{folder}\n") for folder in noted))


def _noted_folders(files: InstalledFiles) -> list[str]:
    try:
        return os.fsdecode(files.made_folders.read_bytes()).removesuffix("\n").split("\n")
    except FileNotFoundError:
        return []


def _remove_made_folders(files: InstalledFiles) -> None:
    """Remove the folders that were made for our files and are empty now."""
    noted = {folder for path in (*files.every(), files.made_folders) for folder in path.parents}
    noted &= set(map(Path, _noted_folders(files)))
    files.made_folders.unlink(missing_ok=True)
    for folder in sorted(noted, reverse=True):
        with suppress(OSError):  # something is in it, or it is gone
            folder.rmdir()


def _may_make_namespaces() -> bool:
    return _output_of(["unshare", "--user", "--map-root-user", "true"]) is not None


def _systemctl(*words: str) -> bool:
    return _output_of(["systemctl", "--user", *words]) is not None


def _output_of(command: list[str]) -> str | None:
    """What it printed; None if it failed or is not installed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


COMMAND = Command(
    "unit",
    "Let systemd start sessiond for you: print, install or remove the units.",
    run=run,
    description="The sessions and the configuration stay when the units are removed.",
    options=(
        Option("--print", "Print the units (the default).", kind="flag"),
        Option("--install", "Write the units, completions and the manual, and start it.", kind="flag"),
        Option("--uninstall", "Stop it, and remove what --install wrote.", kind="flag"),
        JSON,
    ),
    examples=("sessiond unit --install", "sessiond unit --print | less"),
)
