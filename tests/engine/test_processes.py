"""The servers that workers are forked from."""

from __future__ import annotations

import psutil

from packer_cli.engine.processes import Worker, end_servers, outcome_of, process_context, to_bytes


def server_of(*preload: str, **settings: str) -> int:
    """The process id of the server with these imports and settings."""
    worker = Worker(process_context(preload, settings))
    worker.send(to_bytes(eval, "__import__('os').getppid()"))
    server = outcome_of(worker.receive())
    worker.end()
    return server


def test_a_server_stays_until_its_settings_change() -> None:
    first, other = server_of("csv"), server_of("csv", "json")
    assert first != other
    assert server_of("csv") == first
    assert server_of("csv", "json") == other
    changed = server_of("csv", HBPACK_SETTING="1")
    assert changed not in (first, other)
    assert not psutil.pid_exists(first)
    end_servers()
    assert not psutil.pid_exists(other)
    assert not psutil.pid_exists(changed)
    assert server_of("csv", HBPACK_SETTING="1") != changed
