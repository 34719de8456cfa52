"""A session as one HTML file: no script, no request to anywhere, tool calls folded, and readable on paper."""

from __future__ import annotations

import re
from html import escape

from sessiond.cli.documents.contents import ShownMessage, ShownPart

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Final

is_data: Final = False
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_STYLE = """
:root { color-scheme: light dark; --rule: #8886; --dim: light-dark(#595959, #a8a8a8);
  --user: light-dark(#0b57a4, #7cb7ff); --assistant: light-dark(#1a6b2e, #7fd193);
  --other: light-dark(#7a4a00, #e0b062); }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 88ch; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 20px; } h2 { font-size: 12px; font-weight: 600; margin: 0; color: var(--dim); }
h2 b { color: var(--who); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 1rem; font-size: 13px; }
dt { color: var(--dim); } dd { margin: 0; overflow-wrap: anywhere; }
article { border-left: 2px solid var(--who); padding: 0 0 0 12px; margin: 20px 0; --who: var(--other); }
article.user { --who: var(--user); } article.assistant { --who: var(--assistant); }
p { white-space: pre-wrap; overflow-wrap: anywhere; margin: 4px 0; unicode-bidi: isolate; }
pre { font: 13px/1.45 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; margin: 4px 0;
  padding: 8px; border: 1px solid var(--rule); }
summary { font: 13px ui-monospace, monospace; cursor: pointer; overflow-wrap: anywhere; }
details { margin: 4px 0; } .note { color: var(--dim); font-size: 13px; } img { max-width: 100%; }
.session { border-top: 1px solid var(--rule); margin-top: 48px; padding-top: 16px; }
@media print { :root { color-scheme: light; } body { max-width: none; margin: 0; padding: 0; font-size: 10pt; }
  h1, h2, summary { break-after: avoid; } p, pre { orphans: 3; widows: 3; }
  img { break-inside: avoid; max-height: 20cm; }
  pre { font-size: 8.5pt; box-decoration-break: clone; -webkit-box-decoration-break: clone; }
  article { margin: 12px 0; } .session { break-before: page; border: 0; margin: 0; padding: 0; }
  details:not([open]) > :not(summary) { display: none; } }
@page { margin: 16mm 14mm;
  @bottom-right { content: counter(page) " / " counter(pages); font: 8pt system-ui, sans-serif; color: #595959; } }
"""
# Words of millions of characters, such as base64, are wider than a browser can measure; it does not break them itself.
_LONG_WORD = 1000
_LONG_WORDS = re.compile(rf"\S{{{_LONG_WORD}}}(?=\S)")
# A page may not have them, or they turn the text around them.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


def head(title: str, facts: Sequence[tuple[str, str]]) -> str:
    listed = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>\n" for name, value in facts)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="referrer" content="no-referrer">\n<link rel="icon" href="data:,">\n'
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{_text(title)}</h1>\n<dl>\n{listed}</dl>\n"
    )


def session_head(title: str) -> str:
    """The heading of another session in the same document."""
    return f'<h1 class="session">{_text(title)}</h1>\n'


def message(one: ShownMessage, when: str) -> str:
    role = one.who if one.who in ("user", "assistant") else "other"
    sender = f" from {_text(one.sender)}" if one.sender else ""
    parts = "\n".join(_part(part) for part in one.parts)
    return f'<article class="{role}">\n<h2><b>{_text(one.who)}</b>{sender} · {_text(when)}</h2>\n{parts}\n</article>\n'


def foot(notes: Sequence[str]) -> str:
    return "".join(f'<p class="note">{_text(note)}</p>\n' for note in notes) + "</main>\n</body>\n</html>\n"


def _part(part: ShownPart) -> str:
    text = _text(part.text)
    match part.kind:
        case "text":
            return f'<p dir="auto">{text}</p>'
        case "code":
            return f"<pre><code>{text}</code></pre>"
        case "image":
            return f'<img alt="image" src="data:{part.label};base64,{part.text}">'
        case "note":
            return f'<p class="note">{text}</p>'
    return f"<details><summary>{_text(part.summary())}</summary><pre>{text}</pre></details>"


def _text(text: str) -> str:
    text = _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text.replace("\r\n", "\n").replace("\r", "\n"))
    if len(text) <= _LONG_WORD:
        return escape(text)
    # A NUL is a place to break a line: the text itself has none any more.
    return escape(_LONG_WORDS.sub("\\g<0>\x00", text)).replace("\x00", "<wbr>")
