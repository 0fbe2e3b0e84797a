"""Starting or joining a Ray, in silence."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import threading
from contextlib import suppress
from typing import Any

from packer_cli.engine.local import default_workers
from packer_cli.errors import ConfigError, RunError
from packer_cli.sizes import counted

_CONNECT_SECONDS = 10.0
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def check_address(address: str | None) -> None:
    """Check that Ray is installed, and that something answers at an address (None, `auto` and `local` are none).

    Raises:
        ConfigError: it is not installed, or this is no address.
        RunError: nothing answers.
    """
    import importlib.util

    if importlib.util.find_spec("ray") is None:
        raise ConfigError("--engine ray needs Ray, which is not installed; pip install 'hbpack[ray]'")
    if address in (None, "auto", "local"):
        return
    host, colon, port = str(address).rpartition(":")
    if not (host and colon and port.isdigit() and "/" not in host):
        raise ConfigError(
            f"--engine ray:{address}: not the address of a Ray cluster; give HOST:PORT of its head (usually port "
            "6379), or auto for the one that this machine belongs to"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(str(address), error) from None


def start(address: str | None, workers: int | None) -> bool:
    """Join the Ray at an address, or start one on this machine, with this many CPUs; whether `stop` should undo that.

    A process that is in a Ray already stays there.

    Raises:
        RunError: it cannot be joined, or started.
    """
    is_own = address in (None, "local")
    if "ray" not in sys.modules:  # It reads these when it is imported.
        # Other users of this machine must not run code in it; a token of this run needs no file in the home folder.
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)} if is_own else {}
        for name, value in {**_QUIET, **token}.items():
            os.environ.setdefault(name, value)
    import ray

    if ray.is_initialized():
        return False
    options: dict[str, Any] = {"num_cpus": workers or default_workers(), "include_dashboard": False} if is_own else {}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ray.init(address or "local", log_to_driver=False, logging_level=logging.CRITICAL, **options)
    except Exception as error:  # Of many kinds, most of them RuntimeError.
        raise _unreachable(address, error) from None
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():  # Ray's own would end the process before hbpack has cleaned up.
                signal.signal(number, handler)
    return True


def stop() -> None:
    """Leave the cluster, or end the Ray that was started."""
    import ray

    with suppress(Exception):
        ray.shutdown()


def num_cpus() -> int:
    """CPUs of all nodes that are alive now, at least 1."""
    import ray

    return max(1, int(ray.cluster_resources().get("CPU", 0)))


def describe(address: str | None) -> str:
    """Where tasks run: which Ray, its nodes and CPUs."""
    import ray

    cpus = counted(num_cpus(), "CPU")
    if address in (None, "local"):
        return f"a Ray of this machine: {cpus}"
    nodes = sum(node["Alive"] for node in ray.nodes())
    return f"Ray at {ray.get_runtime_context().gcs_address}: {counted(nodes, 'node')}, {cpus}"


def _unreachable(address: str | None, error: BaseException) -> RunError:
    reason = " ".join((str(error) or type(error).__name__).split()).split(". ")[0].rstrip(".")
    if address in (None, "local"):
        return RunError(f"Ray cannot be started ({reason}); try --engine local")
    return RunError(
        f"--engine ray:{address}: Ray does not answer ({reason}); check the address and that the cluster is up, or "
        "leave it out to use this machine"
    )
