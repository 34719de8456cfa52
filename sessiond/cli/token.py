"""`sessiond token`: mint, list and revoke tokens."""

from __future__ import annotations

from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Argument, Command, Option
from sessiond.cli.frame.daemon import ask, drop_absent
from sessiond.cli.frame.failures import FAILED, USAGE, CommandFailed, note
from sessiond.cli.terminal.output import as_json, lines
from sessiond.cli.terminal.screen import Screen, clip_key, screen_of
from sessiond.cli.terminal.table import Column, render
from sessiond.cli.terminal.times import clock, now_ms
from sessiond.errors import pluralize
from sessiond.ranges import TOKEN_TTL_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCOPES = ("list", "read", "send", "spawn", "answer", "admin")


def show(tokens: list[dict[str, Any]], present_ms: int, on: Screen) -> list[str]:
    columns = (
        Column("ID", lambda token: token["id"], keep=9),
        Column(
            "SESSION",
            lambda token: "page" if token.get("page") else token.get("sessionKey"),
            least=12,
            keep=5,
            fit=clip_key,
        ),
        Column("AGENT", lambda token: token.get("agentId"), least=6, keep=4),
        Column("SCOPES", lambda token: " ".join(token["scopes"]), least=8, keep=6),
        Column("SANDBOX", lambda token: "yes" if token["sandboxed"] else "", keep=1),
        Column("EXPIRES", lambda token: clock(token["expiresAt"], present_ms), keep=7),
        Column("STATE", lambda token: _state(token, present_ms), keep=8, style=lambda text: _STYLES[text]),
    )
    return render(columns, tokens, on)


_STYLES = {"STATE": "dim", "valid": "green", "revoked": "red", "expired": "yellow"}


def _state(token: dict[str, Any], present_ms: int) -> str:
    return "revoked" if token["revoked"] else "expired" if token["expiresAt"] <= present_ms else "valid"


def mint(args: Args) -> None:
    if not args.scope:
        raise CommandFailed(
            "say what the token is for", hint=f"--scope, once or more: {', '.join(SCOPES)}", status=USAGE
        )
    if args.ttl is not None and args.ttl < 1:
        raise CommandFailed("a token is valid for a second at least", hint="as in: --ttl 1h", status=USAGE)
    minted = ask(
        args,
        "tokens.mint",
        drop_absent(
            {
                "sessionKey": args.session,
                "agentId": args.agent,
                "scopes": list(args.scope),
                "sandboxed": args.sandboxed or None,
                "ttlSeconds": args.ttl,
            }
        ),
    )
    if args.json:
        as_json(minted)
        return
    lines([minted["token"]])
    note(f"id {minted['id']}, valid until {clock(minted['expiresAt'], now_ms())}; it is shown only now")
    note("put it into a file of mode 0600 and name that in SESSIOND_TOKEN_FILE")
    note(f"end it with: sessiond token revoke {minted['id']}")


def revoke(args: Args) -> int | None:
    done = ask(args, "tokens.revoke", {"id": args.id})
    if args.json:
        as_json(done)
    else:
        lines([f"{args.id} is revoked" if done["revoked"] else f"{args.id} was no valid token"])
    return None if done["revoked"] else FAILED


def show_list(args: Args) -> None:
    found = ask(args, "tokens.list")
    if args.json:
        as_json(found)
        return
    present_ms = now_ms()
    tokens = [token for token in found["tokens"] if args.all or _state(token, present_ms) == "valid"]
    lines(show(tokens, present_ms, screen_of()))
    ended = len(found["tokens"]) - len(tokens)
    if not tokens:
        note("no valid tokens" if ended else "no tokens")
    if ended:
        note(f"beside {pluralize(ended, 'token')} revoked or expired: sessiond token list --all")


COMMAND = Command(
    "token",
    "Mint, revoke and list tokens: rights for programs, narrower than yours.",
    examples=("sessiond token mint --scope list --scope read --session main", "sessiond token list"),
    subcommands=(
        Command(
            "mint",
            "Print a new token.",
            run=mint,
            options=(
                Option("--scope", "What it may do; may be repeated.", many=True, choices=SCOPES),
                Option("--session", "The session it speaks for.", metavar="KEY", complete="key"),
                Option("--agent", "The agent it may run.", metavar="AGENT", complete="agent"),
                Option("--sandboxed", "It is for a sandboxed program, which sees less.", kind="flag"),
                Option(
                    "--ttl",
                    f"How long it is valid ({TOKEN_TTL_S.default // 3600}h).",
                    kind="duration",
                    metavar="SECONDS",
                ),
                *CLIENT_OPTIONS,
            ),
            examples=("sessiond token mint --scope list --scope read --ttl 30d",),
        ),
        Command(
            "revoke",
            "End a token; its live streams end within a second.",
            run=revoke,
            arguments=(Argument("id", "Its id, as `token list` shows it."),),
            options=CLIENT_OPTIONS,
            examples=("sessiond token revoke 4f1c2a",),
        ),
        Command(
            "list",
            "Show the tokens that are valid, newest first.",
            run=show_list,
            options=(Option("--all", "Those that are revoked or expired, too.", kind="flag"), *CLIENT_OPTIONS),
            description="Every program that uses the tools has a token for as long as it is connected. "
            "With --json all tokens are printed.",
            examples=("sessiond token list", "sessiond token list --all"),
        ),
    ),
)
