"""A lock on a remote folder: an object that is created only if there is none (`If-None-Match: *` on S3).

The object says who holds the lock, and its time is renewed while they do. A lock whose time has run out is taken over,
and one on this machine whose process has ended at once. What a holder that was suspended meanwhile finds is another's
lock, and it stops. Storage that cannot create an object exclusively is asked for the object first: that finds a run
that has begun, but not one that begins in the same moment.
"""

from __future__ import annotations

import _thread
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

from packer_cli.errors import RemoteError, RunError
from packer_cli.remote.path import RemotePath

EXPIRES = 120.0
"""Seconds after which a lock that is not renewed may be taken over: more than clocks differ."""
RENEWED = 20.0
"""Seconds between renewals."""


@dataclass(frozen=True)
class _Holder:
    token: str
    host: str
    pid: int
    time: float
    """Seconds since the epoch, by the holder's clock."""

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @property
    def age(self) -> float:
        return max(0.0, time.time() - self.time)

    @property
    def has_ended(self) -> bool:
        if self.age > EXPIRES:
            return True
        if self.host != socket.gethostname():
            return False
        if self.pid == os.getpid():  # In a container that was restarted every process may have this number.
            return self.token not in _held
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False


_held: set[str] = set()
"""Tokens of the locks that this process holds."""


@contextmanager
def hold_lock(folder: RemotePath, name: str) -> Iterator[None]:
    """Hold the lock object `name` in a folder while the block runs.

    Raises:
        RunError: another run holds it, or took it over while this process was suspended.
    """
    lock = folder / name
    ours = _acquire(folder, lock)
    ended, is_lost = threading.Event(), threading.Event()

    def renew() -> None:
        while not ended.wait(RENEWED):
            try:
                holder = _read(lock)
                if holder is None or holder.token != ours.token:
                    is_lost.set()
                    _thread.interrupt_main()
                    return
                lock.write_bytes(replace(ours, time=time.time()).encode())
            except RemoteError:
                continue  # Work on the storage meets the same error.

    thread = threading.Thread(target=renew, name="hbpack-lock", daemon=True)
    thread.start()
    try:
        yield
    except KeyboardInterrupt:
        if is_lost.is_set():
            raise RunError(
                f"output folder {str(folder)!r}: another hbpack run has taken it over, because this one was suspended "
                "or cut off; run again when that has ended"
            ) from None
        raise
    finally:
        ended.set()
        thread.join()
        _held.discard(ours.token)
        holder = _read(lock)
        if holder is not None and holder.token == ours.token:
            lock.unlink()


def _acquire(folder: RemotePath, lock: RemotePath) -> _Holder:
    ours = _Holder(uuid.uuid4().hex, socket.gethostname(), os.getpid(), time.time())
    _held.add(ours.token)
    while not lock.write_new(ours.encode()):
        holder = _read(lock)
        if holder is None:  # It was released meanwhile.
            continue
        # Only one run can create the object with which it takes over from this holder.
        successor = lock.with_name(f"{lock.name}.{holder.token}")
        if holder.has_ended and successor.write_new(ours.encode()):
            lock.write_bytes(ours.encode())
            successor.unlink()
            break
        other = _read(successor)
        if other is not None and other.has_ended:
            successor.unlink()
            continue
        _held.discard(ours.token)
        raise RunError(
            f"output folder {str(folder)!r}: another hbpack run writes to it (process {holder.pid} on {holder.host}, "
            f"seen {holder.age:.0f} s ago); wait until that has ended ({EXPIRES:.0f} s if it was "
            "killed), or name another folder"
        )
    return ours


def _read(lock: RemotePath) -> _Holder | None:
    try:
        return _Holder(**json.loads(lock.read_bytes()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        return _Holder("unknown", "unknown", 0, 0.0)
