"""The file system of a URL: opened, and sent requests that are retried.

Every request of hbpack to remote storage goes through here. A request is retried whatever its error, because
every file system has its own network errors: a cut connection, a timeout, `503 SlowDown`. Retrying cannot help
where an object is missing or exists already, or where credentials are missing or refused. Where nobody listens at the
address, or the network knows no such host, a process that has never reached the storage gives up soon: most often the
address is wrong. Every request must be safe to repeat: it may have succeeded although its answer was lost.
"""

from __future__ import annotations

import errno
import os
import random
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

from packer_cli.errors import HbpackError, RemoteError, UnreachableError
from packer_cli.remote.retries import note_failures, num_failures, watch_s3

StorageOptions = dict[str, Any]
"""Options that an fsspec file system is opened with, such as `key` or `endpoint_url`."""
ObjectInfo = dict[str, Any]
"""Facts that a file system gives of an object: `size`, `type`, and what identifies its version."""
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


_systems: dict[tuple[Any, ...], Any] = {}
"""The file systems that this process has opened, for all of its threads: fsspec may open one for each."""
_answered: set[Any] = set()
"""File systems that have answered a request."""


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a URL of remote storage, such as `s3://bucket/out`."""
    return "://" in str(path)


def open_system(url: str, options: StorageOptions) -> tuple[Any, str]:
    """Return (fsspec file system, path of the URL in it), without contacting the storage.

    A process opens a file system once, for all of its threads.

    Args:
        options: of the file system, such as credentials; without them it looks where its own tools do.

    Raises:
        ImportError: a library is missing; the message says how to install it.
        RemoteError: there is no such kind of storage.
    """
    try:
        import fsspec

        # A listing that was cached could miss what another process has written since.
        found, path = fsspec.url_to_fs(url, **{"use_listings_cache": False, **options})
        scheme, _, rest = url.partition("://")
        system = _systems.setdefault((os.getpid(), scheme, rest.partition("/")[0], repr(options)), found)
        return system, path.rstrip("/")
    except ModuleNotFoundError as error:
        raise ImportError(f"{url!r} needs {error.name}: pip install {error.name}") from None
    except ImportError as error:
        if "s3fs" in str(error):  # fsspec does not know the extra that installs it.
            raise ImportError(f"{url!r} needs s3fs: pip install 'hbpack[remote]'") from None
        raise ImportError(f"{url!r} cannot be opened: {error}") from None
    except ValueError as error:
        raise RemoteError(f"{url!r} cannot be opened: {error}; check the address") from None


def ask(url: str, options: StorageOptions, request: Callable[[Any, str], T], what: str) -> T:
    """Ask a URL's file system for the answer to a request, which is retried.

    Args:
        request: (file system, path of the URL in it) -> answer.
        what: see `retry`.

    Raises:
        FileNotFoundError: there is no such object; the error names the URL.
        RemoteError: see `retry`.
    """
    system, path = open_system(url, options)

    def send() -> T:
        if system not in _answered:
            watch_s3(system)
        return request(system, path)

    try:
        answer = retry(url, send, what=what, has_answered=system in _answered)
    except FileNotFoundError:
        _answered.add(system)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url) from None
    _answered.add(system)
    return answer


def can_connect(endpoint: str, *, timeout: float) -> bool:
    """Whether a TCP connection to the endpoint, or to its proxy, opens within the timeout (s).

    The Hugging Face Hub's clients would retry for half a minute, or for several.
    """
    from urllib.request import getproxies, proxy_bypass

    target = urlsplit(endpoint)
    proxies = getproxies()
    proxy = proxies.get(target.scheme) or proxies.get("all")
    if proxy and not proxy_bypass(target.hostname or ""):
        target = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    try:
        host, port = target.hostname or "", target.port or (80 if target.scheme == "http" else 443)
    except ValueError:
        return False
    has_answered = threading.Event()

    def connect() -> None:
        with suppress(OSError), socket.create_connection((host, port), timeout=timeout):
            has_answered.set()

    # A name look-up ignores the timeout, so run it in a thread that may be left behind; it may take as long again.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(2 * timeout)
    return has_answered.is_set()


async def get_version(system: Any, path: str, etag: str, start: int, stop: int) -> bytes | None:
    """Read a range of this version of an object of S3; return None once the object is another one."""
    bucket, key, version = system.split_path(path)
    # Some servers refuse the condition, and newer releases of s3fs have an option for them.
    asked = {} if getattr(system, "local_expiry_check", False) else {"IfMatch": etag}
    if version:
        asked["VersionId"] = version
    place = {"Bucket": bucket, "Key": key, "Range": f"bytes={start}-{stop - 1}"}
    try:
        answer = await system._call_s3("get_object", **place, **asked)
    except OSError as error:
        response = getattr(error.__cause__, "response", None) or {}
        if response.get("Error", {}).get("Code") in ("PreconditionFailed", "412"):
            return None
        raise
    async with answer["Body"] as body:
        return bytes(await body.read()) if answer.get("ETag", "").strip('"') == etag.strip('"') else None


def whole(data: bytes, start: int, stop: int) -> bytes:
    """Return the bytes of a range, if they are all there. Raises EOFError otherwise."""
    if len(data) != stop - start:
        raise EOFError(f"got {len(data)} bytes for bytes {start} to {stop}")
    return data
