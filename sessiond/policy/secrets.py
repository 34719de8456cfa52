"""Find secrets in text and mask them. Knows patterns of text; does not know messages, callers or the configuration.

Every pattern has a keyword. `str.find` looks for the keyword, and the pattern is matched only where it stands. The
patterns cannot backtrack without bound (possessive quantifiers, bounded gaps) and the search continues behind each
match, so the cost is linear in the length of any text. Long texts are searched in pieces, so that a worker thread
releases the interpreter in between. Source: security.md, "Redaction".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache, partial

from sessiond.errors import ConfigError, quote
from sessiond.model.title import MAX_FIRST_WORDS_CHARS, MAX_TITLE_CHARS
from sessiond.patterns import compile_pattern

MASK = "***"
_SHORT = 18
# The length of the shortest token with a known prefix (xoxb-0123456789). Most strings in messages (roles, types, ids)
# are shorter and are skipped.
_SHORTEST = 15

# A pattern is matched against at most this many characters, which takes 2 ms at most. No secret is that long: a match
# that reaches the bound is masked up to the end of its line.
_PIECE = 64 * 1024

# A key may be quoted, and the quotes escaped because the text is inside a JSON string: \"token\":\"...\"
_QUOTE = r"""\\{0,4}["'`]"""
_ASSIGN = rf"""(?:{_QUOTE})?[ \t]{{0,8}}(?:=>|:=|==?|:)[ \t]{{0,8}}"""
_VALUE = (
    r"""(?:"((?:[^"\\\n]|\\.)++)"""
    r"""|'((?:[^'\\\n]|\\.)++)"""
    r"""|\\{1,4}["']([^"'\\\n]++)"""
    r"""|([^\s"'`,;&|<>(){}\[\]\\]++))"""
)
_KEYED = ("api", "access", "secret", "private", "auth", "signing", "encryption", "account", "master", "shared")
_BEFORE_KEY = "|".join(rf"(?<={word})|(?<={word}[_-])" for word in _KEYED)
_NAMES = rf"token|secret|password|passwd|passphrase|credentials?|(?:{'|'.join(_KEYED)})[_-]?key"

# A field name that ends with one of these words is a secret: refreshToken, DB_PASSWORD, x-api-key.
_NAME = re.compile(rf"(?:{_NAMES}|authorization|cookie)\Z", re.IGNORECASE)
_FLAG_NAME = re.compile(rf"(?:{_NAMES})\Z", re.IGNORECASE)
# Keywords of programming languages and file formats, as in `password: str`. They are not masked.
_NO_SECRET = frozenset({
    "any", "bool", "boolean", "bytes", "false", "int", "nil", "none", "null", "number", "optional", "required", "self",
    "str", "string", "text", "true", "undefined",
})  # fmt: skip


def _shape(keyword: str, pattern: str, flags: int = re.IGNORECASE) -> tuple[str, re.Pattern[str]]:
    return keyword, re.compile(pattern, flags)


def _prefix_pattern(prefix: str, rest: str) -> tuple[str, re.Pattern[str]]:
    """The pattern of tokens with a known prefix: `prefix` at the start of a word, then `rest`."""
    return _shape(prefix.lower(), rf"(?<![A-Za-z0-9])({prefix}{rest})", 0)


_WORD = r"[A-Za-z0-9_-]"
# `(keyword in lower case, pattern)`. The last group that matched is what is masked.
_SHAPES: tuple[tuple[str, re.Pattern[str]], ...] = (
    _shape("token", rf"token{_ASSIGN}{_VALUE}"),
    _shape("secret", rf"secret{_ASSIGN}{_VALUE}"),
    _shape("passw", rf"passw(?:ord|d){_ASSIGN}{_VALUE}"),
    _shape("passphrase", rf"passphrase{_ASSIGN}{_VALUE}"),
    _shape("credential", rf"credentials?{_ASSIGN}{_VALUE}"),
    _shape("key", rf"(?:(?:{_BEFORE_KEY})key|(?-i:(?<=[A-Z0-9]_)KEY)){_ASSIGN}{_VALUE}"),
    _shape(
        "authorization",
        rf"""authorization{_ASSIGN}(?:{_QUOTE})?"""
        r"""(?:(?:bearer|basic|token|apikey|negotiate)[ \t]{1,8}([^\s"'`\\,;]++)|([^"'`\\\r\n]++))""",
    ),
    _shape(
        "cookie",
        rf"cookie(?:{_QUOTE})?[ \t]{{0,8}}:[ \t]{{0,8}}(?:{_QUOTE})?"
        r"""([^"'`\\\r\n=]{1,64}=[^"'`\\\r\n]*+)""",
    ),
    _shape("bearer", r"bearer[ \t]{1,8}([A-Za-z0-9._~+/=-]{18,}+)"),
    _shape("--", rf"--[a-z0-9]++(?:[_-][a-z0-9]++)*+[ \t]{{1,8}}{_VALUE}"),
    _shape("://", r"""://[^\s/@:"']{0,64}:([^\s/@"']{1,256}+)@"""),
    # A Telegram bot token; the number before the colon is the bot's public id.
    _shape(":aa", r"(?<=[0-9]{6}):([A-Za-z0-9_-]{30,}+)", 0),
    _prefix_pattern("sk-", rf"{_WORD}{{16,}}+"),
    # Stripe's sk_, rk_ and pk_.
    _shape("k_live_", r"(?<=[srp])(k_live_[A-Za-z0-9]{10,}+)", 0),
    _shape("k_test_", r"(?<=[srp])(k_test_[A-Za-z0-9]{10,}+)", 0),
    _prefix_pattern("whsec_", r"[A-Za-z0-9+/=]{16,}+"),
    _shape("gh", r"(?<![A-Za-z0-9])(gh[pousr]_[A-Za-z0-9]{20,}+)", 0),
    _prefix_pattern("github_pat_", r"[A-Za-z0-9_]{20,}+"),
    _prefix_pattern("glpat-", rf"{_WORD}{{16,}}+"),
    _shape("xox", r"(?<![A-Za-z0-9])(xox[a-z]-[A-Za-z0-9-]{10,}+)", 0),
    _prefix_pattern("xapp-", r"[A-Za-z0-9-]{10,}+"),
    _prefix_pattern("AIza", rf"{_WORD}{{30,}}+"),
    _prefix_pattern("ya29.", rf"{_WORD}{{20,}}+"),
    _prefix_pattern("gsk_", r"[A-Za-z0-9_-]{16,}+"),
    _prefix_pattern("npm_", r"[A-Za-z0-9]{20,}+"),
    _prefix_pattern("pypi-", rf"{_WORD}{{30,}}+"),
    _prefix_pattern("hf_", r"[A-Za-z0-9]{20,}+"),
    _prefix_pattern("pplx-", rf"{_WORD}{{16,}}+"),
    _prefix_pattern("AKIA", r"[0-9A-Z]{16}(?![0-9A-Za-z])"),
    _prefix_pattern("ASIA", r"[0-9A-Z]{16}(?![0-9A-Za-z])"),
    _shape("eyj", r"(?<![A-Za-z0-9_-])(eyJ[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]{10,}+(?:\.[A-Za-z0-9_-]++)?)", 0),
    # A token of this daemon: tag 18, array of 4, protected header {alg: EdDSA}, in base64url.
    _shape("0ordoqen", r"(?<![A-Za-z0-9_-])(0oRDoQEn[A-Za-z0-9_-]{40,}+)", 0),
)

_BEGIN = "-----BEGIN "
_PEM = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")

Span = tuple[int, int, str | None]


def mask_secrets(text: str, patterns: tuple[re.Pattern[str], ...] = ()) -> tuple[str, bool]:
    """`(text, masked)`: the text with its secrets masked, and whether it had any.

    `patterns` are the owner's own, from `compile_patterns`. Mask before cutting a text into snippets: a secret that was
    cut in two is not recognized.
    """
    if not patterns and _is_too_short(text):
        return text, False
    spans = _spans(text, patterns)
    if not spans:
        return text, False
    out, done = [], 0
    for start, end, fixed in spans:
        out.append(text[done:start])
        out.append(mask(text[start:end]) if fixed is None else fixed)
        done = end
    return "".join([*out, text[done:]]), True


def mask_next(before: str, text: str, patterns: tuple[re.Pattern[str], ...] = ()) -> str:
    """The next piece of a streamed text with its secrets masked. `before` is the end of the text sent so far.

    A secret that began in `before` or may continue in the next piece is masked whole, without its first and last
    letters. Letters of it that were sent before it was recognizable cannot be taken back; they are fewer than the
    shortest secret.
    """
    whole = before + text
    out, done = [], len(before)
    for start, end, fixed in _spans(whole, patterns):
        if end <= len(before):
            continue
        out.append(whole[done : max(start, done)])
        inside = len(before) <= start and end < len(whole)
        out.append(mask(whole[start:end]) if inside and fixed is None else MASK)
        done = end
    return "".join([*out, whole[done:]])


def mask_title(title: str | None, patterns: tuple[re.Pattern[str], ...] = ()) -> str | None:
    """A title masked. Of one that was cut, the last word goes: half a secret would not be recognized."""
    if title is not None and len(title) in (MAX_FIRST_WORDS_CHARS, MAX_TITLE_CHARS):
        title = title[: max(title.rfind(" "), 0)]
    return mask_secrets(title, patterns)[0] if title else None


def mask(value: str) -> str:
    """A secret as it may be shown: `***`, or its first 6 and last 4 characters if it has 18 or more."""
    if len(value) < _SHORT:
        return MASK
    # In JSON text a backslash at the cut would escape the ellipsis.
    return f"{value[:6].rstrip(chr(92))}…{value[-4:]}"


def names_secret(name: str) -> bool:
    """Whether the name of a field says that it holds a secret: `apiKey`, `DB_PASSWORD`, `Authorization`."""
    return _ends_as_secret(name[-40:])


# The same few field names occur in every message; matching a name costs more than walking its value.
@lru_cache(maxsize=1024)
def _ends_as_secret(end: str) -> bool:
    return _NAME.search(end) is not None


def compile_patterns(patterns: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    """The owner's patterns, compiled for `mask_secrets`. If a pattern has groups, only the first group is masked.

    ConfigError for a pattern that the configuration would refuse. Slow patterns are not detected.
    """
    compiled = []
    for pattern in patterns:
        try:
            compiled.append(compile_pattern(pattern))
        except ValueError as error:
            raise ConfigError(f"tools.sessions.redactPatterns: {quote(pattern)} {error}") from None
    return tuple(compiled)


def _spans(text: str, patterns: tuple[re.Pattern[str], ...]) -> list[Span]:
    """The places of the secrets, in order and without overlaps."""
    spans = [*_find_shaped(text), *(_find_pem(text) if _BEGIN in text else ()), *_find_matches(text, patterns)]
    return list(_merge_spans(sorted(spans, key=lambda span: span[:2]))) if spans else []


def _is_too_short(text: str) -> bool:
    """Whether the text has no secret of a known form, because it is too short for one and nothing is assigned in it."""
    return len(text) < _SHORTEST and "=" not in text and ":" not in text and "--" not in text


def _find_shaped(text: str) -> Iterator[Span]:
    if _is_too_short(text):
        return
    low = _lower(text)
    if len(low) <= _PIECE:
        # Most keywords are not in most texts.
        find, shapes = low.find, [shape for shape in _SHAPES if shape[0] in low]
    else:
        find, shapes = partial(_find, low), list(_SHAPES)
    for keyword, pattern in shapes:
        at = find(keyword, 0)
        while at >= 0:
            hit = pattern.match(text, at, at + _PIECE)
            if hit is None:
                at = find(keyword, at + 1)
                continue
            start, end = hit.span(hit.lastindex or 0)
            is_secret = _is_secret(keyword, hit[0], text[start:end])
            if hit.end() == at + _PIECE:
                line_end = _find(text, "\n", end)
                end = len(text) if line_end < 0 else line_end
            if is_secret:
                yield start, end, None
            at = find(keyword, max(hit.end(), at + 1, end if is_secret else 0))


def _find(text: str, keyword: str, at: int) -> int:
    """Like `text.find`, but searching one piece at a time."""
    while at < len(text):
        found = text.find(keyword, at, at + _PIECE + len(keyword) - 1)
        if found >= 0:
            return found
        at += _PIECE
    return -1


def _lower(text: str) -> str:
    """`text` in lower case and of the same length. U+0130 is the only character whose lower case has two characters."""
    low = _lower_pieces(text)
    return low if len(low) == len(text) else _lower_pieces(text.replace("\u0130", "i"))


def _lower_pieces(text: str) -> str:
    if len(text) <= _PIECE:
        return text.lower()
    return "".join(text[at : at + _PIECE].lower() for at in range(0, len(text), _PIECE))


def _is_secret(keyword: str, whole: str, value: str) -> bool:
    if value == MASK or (len(value) == 11 and value[6] == "…") or value.lower() in _NO_SECRET:
        return False
    if keyword == "token":
        # `maxToken: 4096` is a setting, not a secret.
        return not (value.isdecimal() and len(value) < 9)
    if keyword == "--":
        return _FLAG_NAME.search(whole.split(None, 1)[0][-40:]) is not None
    if keyword == "authorization":
        # Three or more words without `=` are a sentence about authorization, not a header value.
        return "=" in value or len(value.split(None, 2)) <= 2
    return True


def _find_pem(text: str) -> Iterator[Span]:
    """The places of PEM private keys: all between BEGIN and END lines; without an END line, the rest of the text."""
    at = _find(text, _BEGIN, 0)
    while at >= 0:
        hit = _PEM.match(text, at)
        if hit is None:
            at = _find(text, _BEGIN, at + 1)
            continue
        end = _find(text, "-----END ", hit.end())
        # In JSON text a line ends with the two characters `\n`; keep them, so that the text stays JSON.
        newline = next((mark for mark in ("\n", "\\n") if text.startswith(mark, hit.end())), "")
        if end < 0:
            yield hit.end(), len(text), newline + MASK
            return
        yield hit.end(), end, newline + MASK + newline
        at = _find(text, _BEGIN, end)


def _find_matches(text: str, patterns: tuple[re.Pattern[str], ...]) -> Iterator[Span]:
    for pattern in patterns:
        for hit in pattern.finditer(text):
            start, end = hit.span(1 if pattern.groups else 0)
            if end > start:
                yield start, end, None


def _merge_spans(spans: list[Span]) -> Iterator[Span]:
    """The spans in order, overlapping ones merged into one."""
    start, end, fixed = spans[0]
    for next_start, next_end, next_fixed in spans[1:]:
        if next_start >= end:
            yield start, end, fixed
            start, end, fixed = next_start, next_end, next_fixed
        else:
            end, fixed = max(end, next_end), fixed or next_fixed
    yield start, end, fixed
