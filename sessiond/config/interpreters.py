"""Which word of a command an interpreter takes for a program: a shell, Python, a shell at the other end of ssh. Pure.

A program of the owner may do anything with its words, so this is no border: it is for the commands that people write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

_SHELL = re.compile(r"(?:.*/)?(?:ba|da|a|z|k|mk|c|tc|fi)?sh")
# An option of a shell after which its first argument is a script: -c, -lc, --command.
_SCRIPT_FOLLOWS = re.compile(r"-[a-zA-Z]*c[a-zA-Z]*|--command")
# Options of a shell whose value is a word of its own.
_WITH_VALUE = re.compile(r"[-+][a-zA-Z]*[oO]|--(?:rcfile|init-file)")
# What takes a program as the value of an option, and that option; the program may be in one word with it.
_BY_OPTION = (
    (re.compile(r"(?:.*/)?(?:python|pypy)[\d.]*"), re.compile(r"(-[a-zA-Z]*c)(.*)", re.DOTALL)),
    (re.compile(r"(?:.*/)?(?:perl|ruby)[\d.]*"), re.compile(r"(-[a-zA-Z\d]*[eE])(.*)", re.DOTALL)),
    (
        re.compile(r"(?:.*/)?(?:node|nodejs|bun|deno)"),
        re.compile(r"(-e|-p|-pe|eval|--eval|--print)((?:=.*)?)", re.DOTALL),
    ),
    (re.compile(r"(?:.*/)?php[\d.]*"), re.compile(r"(-[rBRE])(.*)", re.DOTALL)),
    (re.compile(r"(?:.*/)?(?:lua|luajit|osascript)[\d.]*"), re.compile(r"(-e)(.*)", re.DOTALL)),
    (
        re.compile(r"(?:.*/)?(?:su|runuser|script|flock)"),
        re.compile(r"(-[a-zA-Z]*c|--command)((?:=.*)?)", re.DOTALL),
    ),
    (re.compile(r"(?:.*/)?env"), re.compile(r"(-[a-zA-Z]*S|--split-string)(.*)", re.DOTALL)),
)
# Those whose options end at the name of a program: what stands behind it are the words of that program.
_WITH_PROGRAM_FILE = re.compile(
    r"(?:.*/)?(?:(?:python|pypy|perl|ruby|php|lua|luajit|osascript)[\d.]*|node|nodejs|bun|deno)"
)
# These run the program that their words name.
_WRAPPER = re.compile(
    r"(?:.*/)?(?:env|sudo|doas|nice|ionice|nohup|setsid|stdbuf|timeout|busybox|systemd-run|chroot|unshare|nsenter|bwrap|"
    r"firejail|xargs|script|flock|su|runuser|strace)"
)
# These join all their words to one, which a shell reads, here or on another machine.
_BY_ALL = re.compile(r"(?:.*/)?(?:ssh|mosh|eval|watch)")


def find_program_word(words: Sequence[str], is_meant: Callable[[str], bool]) -> int | None:
    """The place of a word that is meant and that an interpreter takes for a program, or for a part of it."""
    runs_others = words and (_WRAPPER.fullmatch(words[0]) or _SHELL.fullmatch(words[0]))
    called = words if runs_others else words[:1]
    for place, word in enumerate(called):
        for taken in _programs_of(word, words, place + 1):
            if is_meant(words[taken]):
                return taken
    return None


def _programs_of(interpreter: str, words: Sequence[str], start: int) -> list[int]:
    """The places of the words from `start` on that this interpreter takes for a program."""
    if _BY_ALL.fullmatch(interpreter):
        return list(range(start, len(words)))
    if _SHELL.fullmatch(interpreter):
        return _scripts_of_shell(words, start)
    for name, option in _BY_OPTION:
        if name.fullmatch(interpreter):
            return _values_of(option, words, start, ends_at_word=_WITH_PROGRAM_FILE.fullmatch(interpreter) is not None)
    return []


def _scripts_of_shell(words: Sequence[str], start: int) -> list[int]:
    """A shell reads all its options before the script, also those between `-c` and the script, and `--`."""
    found: list[int] = []
    follows = is_value = False
    for place in range(start, len(words)):
        word = words[place]
        if not is_value and word[:1] not in ("-", "+"):
            return [*found, place] if follows else []
        if follows:
            found.append(place)
        is_value = not is_value and _WITH_VALUE.fullmatch(word) is not None
        follows = follows or _SCRIPT_FOLLOWS.fullmatch(word) is not None
        if word == "--" and not follows:
            return []
    return found


def _values_of(option: re.Pattern[str], words: Sequence[str], start: int, *, ends_at_word: bool) -> list[int]:
    found = []
    for place in range(start, len(words)):
        match = option.fullmatch(words[place])
        if match is not None:
            # The value is the rest of the word, or the next one.
            found.append(place if match[2] else place + 1)
        elif ends_at_word and (words[place][:1] != "-" or words[place] == "-m"):
            break
    return [place for place in found if place < len(words)]
