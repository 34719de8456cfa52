"""Rules for the names of attachments and for their mount path. Source: runs.md, "Attachments"."""

from __future__ import annotations

import re
import unicodedata

from sessiond.errors import InvalidParams

MANIFEST = "manifest.json"
MAX_NAME_BYTES = 255
# PATH_MAX without the NUL.
_MAX_MOUNT_PATH_BYTES = 4095

# Unicode categories of characters that are invisible, change the reading order (the bidi controls are in Cf), or break
# a line of a listing or a prompt.
_REFUSED = {
    "Cc": "a control character",
    "Cf": "a format or bidi character",
    "Cs": "a lone surrogate",
    "Zl": "a line separator",
    "Zp": "a paragraph separator",
}
_MOUNT_PATH = re.compile(r"/[A-Za-z0-9._/-]*")


def check_name(name: str, field: str) -> str:
    """`name`, if it is allowed as a file name. `field` is its place in the params, like `$.attachments[0].name`.

    InvalidParams with code `attachments_invalid_name`, `data.field` and `data.reason`. Device names of other systems
    (`CON`, `nul.txt`) are allowed.
    """
    reason = _reason(name)
    if reason is not None:
        raise InvalidParams(
            f"`{field}`: an attachment cannot have this name: {reason}. Rename it and send again.",
            code="attachments_invalid_name",
            field=field,
            reason=reason,
        )
    return name


def collision_key(name: str) -> str:
    """The form in which two names are equal if some file systems cannot hold both: NFC and case folded."""
    # Normalized again after folding, which can produce text that is not NFC ("ǰ" becomes two characters).
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def check_duplicates(names: list[str]) -> None:
    """Refuse names with the same `collision_key`: InvalidParams, code `attachments_duplicate_name`."""
    seen: dict[str, int] = {}
    for index, name in enumerate(names):
        first = seen.setdefault(collision_key(name), index)
        if first != index:
            field = f"$.attachments[{index}].name"
            raise InvalidParams(
                f"`{field}`: attachment {first} has the same name, or one that differs in case only.",
                code="attachments_duplicate_name",
                field=field,
                first=f"$.attachments[{first}].name",
            )


def check_mount_path(path: str) -> str:
    """`path` without doubled slashes and `.` parts. It must be absolute and not `/`.

    InvalidParams with code `attachments_invalid_mount_path`.
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    reason = None
    if _MOUNT_PATH.fullmatch(path) is None:
        reason = "it must be absolute and may hold A-Z, a-z, 0-9, `.`, `_`, `/` and `-` only"
    elif ".." in parts:
        reason = "it must not hold `..`"
    elif not parts:
        reason = "it must not be the root"
    elif len(path) > _MAX_MOUNT_PATH_BYTES or any(len(part) > MAX_NAME_BYTES for part in parts):
        reason = "it is too long"
    if reason is not None:
        raise InvalidParams(
            f"`$.attachAs.mountPath`: attachments cannot be mounted there: {reason}.",
            code="attachments_invalid_mount_path",
            field="$.attachAs.mountPath",
            reason=reason,
        )
    return "/" + "/".join(parts)


def _reason(name: str) -> str | None:
    if not name:
        return "it is empty"
    for character in name:
        if refused := _REFUSED.get(unicodedata.category(character)):
            return f"it holds {refused}, U+{ord(character):04X}"
        if character in "/\\":
            return "it holds a slash or backslash"
    if (size := len(name.encode())) > MAX_NAME_BYTES:
        return f"it has {size} bytes of UTF-8, more than {MAX_NAME_BYTES}"
    if not unicodedata.is_normalized("NFC", name):
        return "it is not in Unicode's normal form NFC"
    # Refuses `.` and `..` too.
    if any(end == "." or end.isspace() for end in (name[0], name[-1])):
        return "it starts or ends with a dot or a space"
    if collision_key(name) == MANIFEST:
        return f"{MANIFEST} is written by the daemon"
    return None
