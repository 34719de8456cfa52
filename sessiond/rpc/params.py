"""Decode the params of a request into the method's struct, with errors that name the field.

Knows the texts of msgspec's errors; knows no method.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from sessiond.errors import InvalidParams, InvalidRequest, ParseError, shorten
from sessiond.rpc.messages import ABSENT, RequestId

_NO_PARAMS = b"{}"
_PATH = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING_OR_UNKNOWN = re.compile(r"^Object (?P<how>missing required|contains unknown) field `(?P<name>.*)`$", re.DOTALL)


def decode_params(decode: Callable[[Any], Any], params: Raw) -> Any:
    """`params` as the method's struct.

    Absent, `null` and `[]` are no params. Raises InvalidParams, whose data names the field the way msgspec does:
    `$.attachments[0].name`.
    """
    try:
        return decode(_as_object(params))
    except msgspec.ValidationError as error:
        raise _invalid_params(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # The params were left raw with the envelope, so malformed JSON inside them is found here.
        raise ParseError(f"The params are not JSON: {error}.") from None


def take_meta(params: Raw) -> tuple[Raw, dict[str, Any] | None]:
    """`params` without `_meta`, and the `_meta` object, None where there is none."""
    try:
        members = msgspec.json.decode(_as_object(params), type=dict[str, Raw])
        meta = members.pop("_meta", None)
        if meta is None:
            return params, None
        return Raw(msgspec.json.encode(members)), msgspec.json.decode(meta, type=dict[str, Any])
    except msgspec.ValidationError:
        raise InvalidParams("`$._meta` is an object.", field="$._meta") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ParseError(f"The params are not JSON: {error}.") from None


class _Cancel(msgspec.Struct):
    id: RequestId


_decode_cancel = msgspec.json.Decoder(_Cancel).decode


def cancelled_id(params: Raw) -> RequestId:
    """The id in the params of `$/cancelRequest`."""
    cancel: _Cancel = decode_params(_decode_cancel, params)
    return cancel.id


def _as_object(params: Raw) -> bytes | Raw:
    if params is ABSENT:
        return _NO_PARAMS
    match memoryview(params)[0]:
        case 0x7B:  # {
            return params
        case 0x5B if not msgspec.json.decode(params):  # [
            return _NO_PARAMS
        case 0x5B:
            raise InvalidParams("Params go by name: send an object.", field="$")
        case 0x6E:  # null
            return _NO_PARAMS
        case _:
            raise InvalidRequest("Params are an object.")


def _invalid_params(reason: str) -> InvalidParams:
    found = _PATH.match(reason)
    what, path = (found["what"], found["path"] or "$") if found else (reason, "$")
    if named := _MISSING_OR_UNKNOWN.match(what):
        path = f"{path}.{named['name']}"
        what = "it is missing" if named["how"].startswith("missing") else "there is no such parameter"
    elif what.startswith("Invalid enum value"):
        what = "it is none of the values that there are"
    path = shorten(path)
    return InvalidParams(f"`{path}`: {what[:1].lower()}{what[1:]}.", field=path)
