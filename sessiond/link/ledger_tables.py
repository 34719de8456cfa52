"""The tables of the ledger of commands. Triggers keep the totals, so that nothing is counted row by row."""

from __future__ import annotations

# An answer that is no longer costs about what its command does, and is never forgotten before it.
SHORT_ANSWER_BYTES = 512

TABLES = """
create table if not exists commands (
    peer text not null, id text not null, state text not null, body blob, run_id text, session_key text,
    tries integer not null default 0, reason text, answer blob, is_sent integer not null default 0,
    at_ms integer not null, primary key (peer, id)
) without rowid;
create index if not exists open_commands on commands (state) where state in ('waiting', 'running');
create index if not exists unsent_answers on commands (is_sent) where answer is not null and is_sent = 0;
create index if not exists sent_answers on commands (peer, at_ms) where is_sent = 1;
create index if not exists long_answers on commands (peer, at_ms) where is_sent = 1 and length(answer) > {short};
create index if not exists dead_letters on commands (at_ms) where state = 'dead';
create table if not exists parts (
    number integer primary key autoincrement, peer text not null, id text not null, part integer not null,
    parts integer not null, data blob not null, unique (peer, id, part)
);
create index if not exists parts_of_peers on parts (peer);
create table if not exists children (
    peer text not null, local_key text not null, remote_key text not null, primary key (peer, local_key)
) without rowid;
create table if not exists asked (
    peer text not null, id text not null, at_ms integer not null, primary key (peer, id)
) without rowid;
create table if not exists refused (
    number integer primary key autoincrement, peer text not null, id text not null, unique (peer, id)
);
create index if not exists refused_of_peers on refused (peer, number);
create table if not exists totals (
    peer text not null, state text not null, is_sent integer not null, count integer not null, bytes integer not null,
    primary key (peer, state, is_sent)
) without rowid;
create table if not exists part_totals (
    peer text primary key, count integer not null, bytes integer not null
) without rowid;
create trigger if not exists a_command_comes after insert on commands begin
    insert or ignore into totals values (new.peer, new.state, new.is_sent, 0, 0);
    update totals set count = count + 1, bytes = bytes + {new_bytes}
        where peer = new.peer and state = new.state and is_sent = new.is_sent;
end;
create trigger if not exists a_command_goes after delete on commands begin
    update totals set count = count - 1, bytes = bytes - {old_bytes}
        where peer = old.peer and state = old.state and is_sent = old.is_sent;
end;
create trigger if not exists a_command_changes after update on commands begin
    update totals set count = count - 1, bytes = bytes - {old_bytes}
        where peer = old.peer and state = old.state and is_sent = old.is_sent;
    insert or ignore into totals values (new.peer, new.state, new.is_sent, 0, 0);
    update totals set count = count + 1, bytes = bytes + {new_bytes}
        where peer = new.peer and state = new.state and is_sent = new.is_sent;
end;
create trigger if not exists a_part_comes after insert on parts begin
    insert or ignore into part_totals values (new.peer, 0, 0);
    update part_totals set count = count + 1, bytes = bytes + length(new.data) where peer = new.peer;
end;
create trigger if not exists a_part_goes after delete on parts begin
    update part_totals set count = count - 1, bytes = bytes - length(old.data) where peer = old.peer;
end;
"""
# The totals of what was there before they were kept.
COUNT_ALL = """
begin immediate;
delete from totals;
insert into totals select peer, state, is_sent, count(*), sum({row_bytes}) from commands group by 1, 2, 3;
delete from part_totals;
insert into part_totals select peer, count(*), sum(length(data)) from parts group by 1;
pragma user_version = 1;
commit;
"""


def in_full(script: str) -> str:
    """The script with what counts of a command: its body, and of its answer what may be forgotten."""
    bytes_of = "(coalesce(length({0}body), 0) + max(coalesce(length({0}answer), 0) - {1}, 0))"
    for name in ("new", "old", "row"):
        row = "" if name == "row" else f"{name}."
        script = script.replace(f"{{{name}_bytes}}", bytes_of.format(row, SHORT_ANSWER_BYTES))
    return script.replace("{short}", str(SHORT_ANSWER_BYTES))
