"""Channels: one attempt at a delivery, through a connection or a command."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from support.conversing_runs import Adapter
from support.patience import PATIENCE_S
from support.rows import check_each
from support.shortage import free_descriptors
from support.supervised_runs import ignore_call

from sessiond.config.settings import ChannelConfig
from sessiond.delivery.channel_command import MAX_ARGUMENT_BYTES, command_for
from sessiond.delivery.channels import ANSWER_S, Channels, Delivery, NotDelivered
from sessiond.errors import Unsupported
from sessiond.policy.target import Target
from sessiond.runtimes.attached import AgentConnectionLost, RefusedByAgent

DELIVERY = Delivery(
    delivery_id="d1",
    channel="telegram",
    to="-100",
    session_key="agent:main:main",
    text="words",
    title="a title",
    created_at=1,
)


def make_channels(on_attach: Callable[[str], None] = ignore_call, **commands: tuple[str, ...]) -> Channels:
    configured = {name: ChannelConfig(command=command) for name, command in commands.items()}
    environ = {"PATH": "/usr/bin:/bin", "SECRET": "x"}
    return Channels(lambda: configured, environ=environ, cwd=Path("/"), on_attach=on_attach)


def with_account(account_id: str | None) -> Delivery:
    return Delivery(**{**_fields(DELIVERY), "account_id": account_id})


def _fields(one: Delivery) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__struct_fields__}


class TestAdapters:
    async def test_any_answer_of_the_adapter_is_an_acknowledgement(self):
        channels, adapter = make_channels(), Adapter()
        channels.attach("telegram", adapter)
        whole = Delivery(**{**_fields(DELIVERY), "account_id": "a", "thread_id": "7"})
        await channels.deliver(whole)
        assert adapter.asked == [
            (
                "channel.deliver",
                {
                    "deliveryId": "d1",
                    "to": "-100",
                    "accountId": "a",
                    "threadId": "7",
                    "sessionKey": "agent:main:main",
                    "text": "words",
                },
            )
        ]

    @pytest.mark.parametrize(
        ("error", "sentence"),
        [
            (RefusedByAgent("no such chat"), "the adapter of telegram answered: no such chat"),
            (AgentConnectionLost(), "the adapter of telegram left before it acknowledged"),
        ],
    )
    async def test_an_error_of_the_adapter_is_no_acknowledgement(self, error: Exception, sentence: str):
        channels, adapter = make_channels(), Adapter()

        async def fail(params: dict[str, Any]) -> Any:
            raise error

        adapter.act = fail
        channels.attach("telegram", adapter)
        with pytest.raises(NotDelivered, match=f"^{sentence}$"):
            await channels.deliver(DELIVERY)

    async def test_a_delivery_fails_without_an_adapter(self):
        channels, adapter = make_channels(), Adapter()
        with pytest.raises(NotDelivered, match=r"^no adapter is attached for channel telegram$"):
            await channels.deliver(DELIVERY)
        channels.attach("telegram", adapter)
        channels.detach(adapter)
        with pytest.raises(NotDelivered):
            await channels.deliver(DELIVERY)

    async def test_the_newest_adapter_of_the_account_delivers(self):
        channels = make_channels()
        everyone, older, newer, other = Adapter(), *(Adapter(account_id=name) for name in ("a", "a", "b"))
        for adapter in (everyone, older, newer, other):
            channels.attach("telegram", adapter)
        for account_id, expected in (("a", newer), ("b", other), ("c", everyone), (None, everyone)):
            expected.asked.clear()
            await channels.deliver(with_account(account_id))
            assert len(expected.asked) == 1
        channels.detach(newer)
        await channels.deliver(with_account("a"))
        assert len(older.asked) == 1
        channels.detach(everyone)
        with pytest.raises(NotDelivered):
            await channels.deliver(with_account("c"))
        # If the delivery names no account, any adapter will do.
        await channels.deliver(with_account(None))
        assert len(other.asked) == 2

    async def test_an_adapter_that_may_not_see_the_session_is_skipped(self, tmp_path: Path):
        out = tmp_path / "out"
        channels, first, blind = make_channels(telegram=("touch", str(out))), Adapter(), Adapter()
        channels.attach("telegram", first)
        channels.attach("telegram", blind)
        blind.hidden.add(DELIVERY.session_key)
        await channels.deliver(DELIVERY)
        assert (first.texts, blind.texts) == (["words"], [])
        channels.detach(first)
        await channels.deliver(DELIVERY)  # by the command
        assert (out.exists(), blind.texts) == (True, [])
        alone = make_channels()
        alone.attach("telegram", blind)
        with pytest.raises(NotDelivered, match="no adapter that may see this session is attached for channel telegram"):
            await alone.deliver(DELIVERY)

    async def test_a_connection_that_attaches_again_is_one_adapter(self):
        attached_channels: list[str] = []
        channels, adapter = make_channels(attached_channels.append), Adapter()
        channels.attach("telegram", adapter)
        channels.attach("telegram", adapter)
        channels.attach("signal", adapter)
        assert attached_channels == ["telegram", "telegram", "signal"]
        assert {name: len(adapters) for name, adapters in channels._adapters.items()} == {"telegram": 1, "signal": 1}
        channels.detach(adapter)
        assert channels._adapters == {}

    async def test_webchat_and_internal_need_no_adapter_because_the_transcript_delivers(self):
        channels, adapter = make_channels(), Adapter()
        assert [channels.in_transcript(name) for name in ("webchat", "internal", "telegram")] == [True, True, False]
        webchat = Delivery(**{**_fields(DELIVERY), "channel": "webchat"})
        await channels.deliver(webchat)
        channels.attach("webchat", adapter)
        assert not channels.in_transcript("webchat")
        await channels.deliver(webchat)
        assert adapter.texts == ["words"]
        assert not make_channels(webchat=("true",)).in_transcript("webchat")


class TestThreads:
    TARGET = Target(channel="telegram", to="-100")

    async def test_an_adapter_with_threads_binds_a_session_to_a_new_thread(self):
        channels, adapter = make_channels(), Adapter(threads=True)

        async def act(params: dict[str, Any]) -> Any:
            return {"threadId": 42}

        adapter.act = act
        channels.attach("telegram", adapter)
        assert channels.threads(self.TARGET)
        assert await channels.bind_thread(self.TARGET, "agent:main:subagent:1", "a label") == "42"
        assert adapter.asked == [
            ("channel.bindThread", {"sessionKey": "agent:main:subagent:1", "label": "a label", "to": "-100"})
        ]

    async def test_binding_a_thread_is_unsupported_without_an_adapter_that_has_threads(self):
        channels = make_channels()
        channels.attach("telegram", Adapter())
        for target in (self.TARGET, None, Target(channel="webchat")):
            assert not channels.threads(target)
            with pytest.raises(Unsupported) as caught:
                await channels.bind_thread(target, "agent:main:subagent:1", None)
            assert caught.value.code == "thread_unsupported"

    @check_each("answer", [None, {}, {"threadId": ""}, {"threadId": None}, {"threadId": True}, [], "t"])
    async def test_an_answer_without_a_thread_is_unsupported(self, answer: Any):
        channels, adapter = make_channels(), Adapter(threads=True)

        async def act(params: dict[str, Any]) -> Any:
            return answer

        adapter.act = act
        channels.attach("telegram", adapter)
        with pytest.raises(Unsupported, match="named no thread"):
            await channels.bind_thread(self.TARGET, "agent:main:subagent:1", None)

    async def test_a_refusal_of_the_adapter_to_bind_a_thread_is_reported_with_its_reason(self):
        channels, adapter = make_channels(), Adapter(threads=True)

        async def act(params: dict[str, Any]) -> Any:
            raise RefusedByAgent("no rights")

        adapter.act = act
        channels.attach("telegram", adapter)
        with pytest.raises(Unsupported, match="made no thread: no rights"):
            await channels.bind_thread(self.TARGET, "agent:main:subagent:1", None)


ECHO = "import sys, json, os; open(sys.argv[1], 'w').write(json.dumps([sys.argv[2:], dict(os.environ)]))"


class TestCommands:
    async def test_a_command_gets_the_text_as_arguments_without_a_shell(self, tmp_path: Path):
        out = tmp_path / "out"
        command = (
            sys.executable,
            "-c",
            ECHO,
            str(out),
            "{title}: {text}",
            "{to}",
            "{sessionKey} {deliveryId}",
            "{other}",
        )
        words = Delivery(**{**_fields(DELIVERY), "channel": "desktop", "text": "$(rm -rf /) `x` {to}; 'q' \"d\"\nline"})
        with trio.fail_after(PATIENCE_S):
            await make_channels(desktop=command).deliver(words)
        arguments, environ = json.loads(out.read_text())
        assert arguments == [
            "a title: $(rm -rf /) `x` {to}; 'q' \"d\"\nline",
            "-100",
            "agent:main:main d1",
            "{other}",
        ]
        assert "SECRET" not in environ
        assert environ["PATH"] == "/usr/bin:/bin"

    @check_each(
        ("command", "sentence"),
        [
            (("sh", "-c", "echo oops >&2; exit 3"), "command exited with status 3: oops"),
            (("false",), "command exited with status 1"),
            (("no-such-program-anywhere",), "command not found"),
        ],
    )
    async def test_a_command_that_fails_or_is_not_found_is_no_acknowledgement(
        self, command: tuple[str, ...], sentence: str
    ):
        with trio.fail_after(PATIENCE_S), pytest.raises(NotDelivered, match=sentence):
            await make_channels(telegram=command).deliver(DELIVERY)

    async def test_a_command_without_a_free_file_descriptor_is_a_failed_attempt(self):
        channels = make_channels(telegram=("/bin/true",))
        await channels.deliver(DELIVERY)
        with free_descriptors(2), pytest.raises(NotDelivered, match="cannot be started"):
            await channels.deliver(DELIVERY)
        await channels.deliver(DELIVERY)

    async def test_an_attached_adapter_is_preferred_to_the_command(self):
        channels, adapter = make_channels(telegram=("false",)), Adapter()
        channels.attach("telegram", adapter)
        await channels.deliver(DELIVERY)
        assert adapter.texts == ["words"]

    def test_a_delivery_has_30_seconds_to_be_acknowledged(self):
        assert ANSWER_S == 30.0

    def fill(self, part: str, **fields: str) -> str:
        values = {"title": "T", "text": "X", "to": "1", "sessionKey": "k", "deliveryId": "d", **fields}
        return command_for(("p", part), values, environ={}, cwd=Path("/")).argv[1]

    @check_each(
        ("part", "fields", "filled"),
        [
            ("{text}", {"text": "--help"}, " --help"),
            ("{title}", {"title": "-x"}, " -x"),
            ("x{text}", {"text": "-x"}, "x-x"),
            ("--text={text}", {"text": "-x"}, "--text=-x"),
            # The id of a chat may begin with a minus sign.
            ("{to}", {"to": "-100"}, "-100"),
            ("{text}", {"text": "a\0b"}, "a\ufffdb"),
            ("{text}", {"text": "a\ud800b"}, "a?b"),
            ("{text}{title}", {"text": "{title}", "title": "{text}"}, "{title}{text}"),
            ("{ text }", {}, "{ text }"),
        ],
    )
    def test_placeholders_are_filled_once_and_a_text_cannot_become_an_option(
        self, part: str, fields: dict[str, str], filled: str
    ):
        assert self.fill(part, **fields) == filled

    @pytest.mark.parametrize(("size", "cut"), [(MAX_ARGUMENT_BYTES, False), (MAX_ARGUMENT_BYTES + 1, True)])
    def test_a_text_too_long_for_an_argument_is_cut(self, size: int, cut: bool):
        filled = self.fill("{text}", text="x" * size)
        assert len(filled) == MAX_ARGUMENT_BYTES
        assert filled.endswith(" [...]") == cut

    @given(st.text(), st.text())
    def test_any_text_can_be_passed_to_a_program(self, text: str, title: str):
        filled = self.fill("{title} {text}", text=text, title=title)
        assert b"\0" not in filled.encode("utf-8")
