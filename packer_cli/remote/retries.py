"""Requests to storage that are sent again, and the failures after which they were: counted, and said at the first.

A request is retried whatever its error, because every file system has its own network errors: a cut connection, a
timeout, `503 SlowDown`. Retrying cannot help where an object is missing or exists already, or where credentials are
missing or refused. Where nobody listens at the address, or the network knows no such host, a process that has never
reached the storage gives up soon: most often the address is wrong. Every request must be safe to repeat: it may have
succeeded although its answer was lost.

Worker processes say nothing. They hand their counts over with their results.
"""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

from packer_cli.errors import HbpackError, RemoteError, UnreachableError

T = TypeVar("T")

TRIES = 6
FIRST_DELAY = 0.5
"""Seconds before the second try; each further one waits twice as long, and up to half as long again at random."""
UNREACHED_SECONDS = 3.0
"""Seconds of trying to reach a storage for the first time. The library's own tries come on top: those of botocore,
which s3fs uses, take 7 seconds."""

_FINAL = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, HbpackError)
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "DefaultCredentialsError")
"""Errors of botocore and google-auth, by name: importing these libraries takes a second."""


def retry(name: str, request: Callable[[], T], *, what: str = "read", has_answered: bool = True) -> T:
    """Repeat a request until it succeeds, and return its result.

    Args:
        name: the object, for messages.
        what: what the request does to it: "could not be WHAT".
        has_answered: whether this storage has answered this process before.

    Raises:
        FileNotFoundError, FileExistsError: what the storage says.
        RemoteError: access was refused.
        UnreachableError: the last try failed.
    """
    begin = time.monotonic()
    for number in range(1, TRIES + 1):
        noted = num_failures()
        try:
            return request()
        except _FINAL:
            raise
        except Exception as error:
            if isinstance(error, PermissionError) or type(error).__name__ in _NO_CREDENTIALS:
                raise RemoteError(f"{name!r} may not be {what} ({error}); check the credentials") from None
            if not has_answered and time.monotonic() > begin + UNREACHED_SECONDS and _reached_nobody(error):
                raise UnreachableError(
                    f"{name!r} could not be {what}: no server answers ({_with_address(error)}); check the address and "
                    "the network"
                ) from None
            if number == TRIES:
                raise UnreachableError(
                    f"{name!r} could not be {what} in {TRIES} tries ({type(error).__name__}: {error}); check the "
                    "network and the address, then run again"
                ) from error
            if num_failures() == noted:
                note_failures({f"{name.partition('://')[0]} storage fails ({type(error).__name__})": 1})
            time.sleep(FIRST_DELAY * 2 ** (number - 1) * random.uniform(1, 1.5))
    raise AssertionError


def _reached_nobody(error: BaseException | None) -> bool:
    """Whether nobody listens at the address, or there is no such host."""
    while error is not None:
        if isinstance(error, (ConnectionRefusedError, socket.gaierror)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _with_address(error: Exception) -> str:
    """Describe an error with the address that was asked, which errors of httpx (`hf://`) do not name."""
    with suppress(AttributeError, RuntimeError):
        return f"{error.request.url.host}: {error}"  # type: ignore[attr-defined]
    return str(error)


_LOGGER = logging.getLogger("hbpack")
_lock = threading.Lock()
_failures: Counter[str] = Counter()
"""Failures since `take_failures`, by place and answer."""

Failures = dict[str, int]


def note_failures(found: Failures) -> None:
    """Count failures, such as `{"host answers 503": 2}`."""
    with _lock:
        is_first = not _failures and found
        _failures.update(found)
    if is_first:
        _LOGGER.info("%s; trying again", next(iter(found)))


def take_failures() -> Failures:
    """Return the counts, and begin again."""
    with _lock:
        found = dict(_failures)
        _failures.clear()
    return found


def num_failures() -> int:
    """Count the failures since `take_failures`."""
    with _lock:
        return _failures.total()


def watch_s3(system: Any) -> None:
    """Count the failures after which s3fs and its libraries send a request again by themselves."""
    events = getattr(getattr(getattr(system, "s3", None), "meta", None), "events", None)
    if events is not None:
        events.register_first("needs-retry.s3", _note_answer, unique_id="hbpack")


def _note_answer(response: Any, caught_exception: Exception | None, request_dict: Any, **_: Any) -> None:
    status = 0 if response is None else response[0].status_code
    if caught_exception is not None or status >= 500 or status == 429:
        what = f"answers {status}" if status else f"does not answer ({type(caught_exception).__name__})"
        note_failures({f"{urlsplit(request_dict['url']).netloc} {what}": 1})
