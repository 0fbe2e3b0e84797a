"""The file system of a URL: opened, and sent requests that are retried.

Every request of hbpack to remote storage goes through here.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

from packer_cli.errors import RemoteError
from packer_cli.remote.retries import retry, watch_s3

StorageOptions = dict[str, Any]
"""Options that an fsspec file system is opened with, such as `key` or `endpoint_url`."""
ObjectInfo = dict[str, Any]
"""Facts that a file system gives of an object: `size`, `type`, and what identifies its version."""
T = TypeVar("T")

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
