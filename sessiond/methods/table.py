"""Every wire method, in one list. A new method is one file and one line here."""

from __future__ import annotations

from sessiond.methods import (
    agent_wait,
    agents_attach,
    agents_list,
    chat_abort,
    chat_history,
    chat_inject,
    chat_send,
    daemon_status,
    gateway_sessions_list,
    initialize,
    ping,
    rpc_discover,
    run_event,
    sessions_create,
    sessions_history,
    sessions_kill,
    sessions_list,
    sessions_messages_subscribe,
    sessions_messages_unsubscribe,
    sessions_resolve,
    sessions_steer,
    sessions_subscribe,
    sessions_unsubscribe,
    tokens_list,
    tokens_mint,
    tokens_revoke,
)
from sessiond.rpc.method import Method

METHODS: tuple[Method, ...] = tuple(
    module.METHOD
    for module in (
        initialize,
        ping,
        rpc_discover,
        daemon_status,
        sessions_list,
        sessions_history,
        agents_list,
        gateway_sessions_list,
        sessions_resolve,
        sessions_create,
        chat_history,
        chat_send,
        chat_inject,
        agent_wait,
        sessions_subscribe,
        sessions_unsubscribe,
        sessions_messages_subscribe,
        sessions_messages_unsubscribe,
        agents_attach,
        run_event,
        chat_abort,
        sessions_kill,
        sessions_steer,
        tokens_mint,
        tokens_revoke,
        tokens_list,
    )
)
