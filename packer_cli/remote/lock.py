"""A lock on a remote folder: an object that is created only if there is none (`If-None-Match: *` on S3).

The object says who holds the lock, and its time is renewed while they do. A lock whose time has run out is taken over,
and one on this machine whose process has ended at once. Where a clock says that the time has run out, or is yet to
come, S3 is asked when the lock was renewed and what time it is: clocks of machines differ. What a holder that was
suspended meanwhile finds is another's lock, and it stops. Storage that cannot create an object exclusively is asked
for the object first: that finds a run that has begun, but not one that begins in the same moment.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace

from packer_cli.errors import BusyError, RemoteError
from packer_cli.remote.path import RemotePath
from packer_cli.signals import stoppable

EXPIRES = 120.0
"""Seconds after which a lock that is not renewed may be taken over: more than clocks differ."""
RENEWED = 20.0
"""Seconds between renewals."""

_held: dict[str, RemoteLock] = {}
"""The locks that this process holds, by token."""


@dataclass(frozen=True)
class LockHolder:
    """The process that holds a lock."""

    token: str
    host: str
    pid: int
    time: float
    """Seconds since the epoch, by the holder's own clock."""
    note: str = ""
    """Note about the holder, see `add_note`."""

    def encode(self) -> bytes:
        """Encode the lock object."""
        return json.dumps(asdict(self)).encode()

    @property
    def age(self) -> float:
        """Seconds since the holder renewed the lock."""
        return max(0.0, time.time() - self.time)

    @property
    def has_ended(self) -> bool:
        """Whether its lock may be taken over."""
        if self.age > EXPIRES:
            return True
        if self.host != socket.gethostname():
            return False
        if self.pid == os.getpid():  # In a container that was restarted every process may have this number.
            return self.token not in _held
        try:
            os.kill(self.pid, 0)
        except OSError as error:  # It may be another user's.
            return isinstance(error, ProcessLookupError)
        return False


def find_holders(folder: RemotePath, prefix: str) -> dict[str, LockHolder]:
    """Find the holders of the locks in a folder whose names have this prefix, by name."""
    read = {path.name: _read(path) for path in folder.iterdir() if path.name.startswith(prefix)}
    return {name: holder for name, holder in read.items() if holder is not None and not holder.has_ended}


def remove_dead(folder: RemotePath, prefix: str) -> None:
    """Remove the locks whose names have this prefix and whose holders have ended."""
    for path in folder.iterdir():
        if path.name.startswith(prefix):
            holder = _read(path)
            if holder is None or holder.has_ended:
                path.unlink()


def add_note(folder: RemotePath, name: str, note: str) -> None:
    """Let a lock that this process holds say something about its holder."""
    path = folder / name
    next(lock for lock in _held.values() if lock.path == path).say(note)


class RemoteLock:
    """The lock object `name` in a folder."""

    def __init__(self, folder: RemotePath, name: str) -> None:
        self.name = name
        self._folder = folder
        self.path = folder / name
        self._ours = LockHolder(uuid.uuid4().hex, socket.gethostname(), os.getpid(), time.time())
        self._ended, self._is_lost, self._writing = threading.Event(), threading.Event(), threading.Lock()
        self._stops = ExitStack()

    def take(self) -> LockHolder | None:
        """Take the lock, and return None; return the holder if another has the lock."""
        self._ours = replace(self._ours, time=time.time())
        _held[self._ours.token] = self
        while not self.path.write_new(self._ours.encode()):
            holder = _read(self.path)
            if holder is None:  # It was released meanwhile.
                continue
            # Only one run can create the object with which it takes over from this holder.
            successor = self.path.with_name(f"{self.name}.{holder.token}")
            if holder.has_ended and successor.write_new(self._ours.encode()):
                self.path.write_bytes(self._ours.encode())
                successor.unlink()
                break
            other = _read(successor)
            if other is not None and other.has_ended:
                successor.unlink()
                continue
            del _held[self._ours.token]
            return holder
        return None

    def release(self) -> None:
        """Let go of the lock, if it was taken and nobody has taken it over."""
        holder = _read(self.path)
        if holder is not None and holder.token == self._ours.token:
            self.path.unlink()
        _held.pop(self._ours.token, None)

    def __enter__(self) -> RemoteLock:
        """Renew the lock on a thread from now on, which interrupts the main thread if another run has the lock."""
        stop = self._stops.enter_context(stoppable())
        self._thread = threading.Thread(target=self._renew, args=(stop,), name="hbpack-lock", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Release the lock.

        Raises:
            BusyError: another run took over the lock, because this process was suspended.
        """
        self._ended.set()
        self._thread.join()
        self._stops.close()
        if self._is_lost.is_set() and kind in (None, KeyboardInterrupt):
            raise BusyError(
                f"output folder {str(self._folder)!r}: another hbpack run has taken it over, because this one was "
                "suspended or cut off; run again when that has ended"
            ) from None
        try:
            self.release()
        except RemoteError:
            if kind is None:
                raise  # Otherwise the error at hand says more.

    def say(self, note: str) -> None:
        """Write a note into the lock."""
        self._ours = replace(self._ours, note=note)
        self._write()

    def _write(self) -> None:
        with self._writing:
            self.path.write_bytes(replace(self._ours, time=time.time()).encode())

    def _renew(self, stop: Callable[[], None]) -> None:
        while not self._ended.wait(RENEWED):
            try:
                holder = _read(self.path)
                if holder is None or holder.token != self._ours.token:
                    self._is_lost.set()
                    stop()
                    return
                self._write()
            except RemoteError:
                continue  # Work on the storage meets the same error.


def _server_age(lock: RemotePath) -> float | None:
    """Return seconds since a lock was written, by its storage's clock; None where the storage says no times."""
    probe = lock.with_name(f".clock.{uuid.uuid4().hex}.tmp")
    with suppress(RemoteError, FileNotFoundError):
        probe.write_bytes(b"now")
        now, then = (path.info().get("LastModified") for path in (probe, lock))
        probe.unlink()
        return None if now is None or then is None else float((now - then).total_seconds())
    return None


def _read(lock: RemotePath) -> LockHolder | None:
    try:
        holder = LockHolder(**json.loads(lock.read_bytes()))
        is_odd = not 0 <= time.time() - holder.time <= EXPIRES
        age = _server_age(lock) if is_odd else None
        return holder if age is None else replace(holder, time=time.time() - age)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        return LockHolder("unknown", "unknown", 0, 0.0)
