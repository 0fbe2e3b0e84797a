"""Opens the file system of a URL, and sends it requests."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any, TypeVar

from packer_cli.errors import RemoteError
from packer_cli.remote.retry import retry

T = TypeVar("T")

_systems: dict[tuple[Any, ...], Any] = {}
"""The file systems that this process has opened, for all of its threads."""
_answered: set[tuple[Any, ...]] = set()
"""Those that have answered a request."""


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a URL of remote storage, such as `s3://bucket/out`."""
    return "://" in str(path)


def open_system(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    """(fsspec file system, path of the URL in it). Contacts nothing.

    Args:
        options: of the file system, such as credentials; without them it looks where its own tools do.

    Raises:
        ImportError: a library is missing; the message says how to install it.
        RemoteError: there is no such kind of storage.
    """
    try:
        import fsspec

        # A listing that was cached could miss what another process has written since.
        return fsspec.url_to_fs(url, **{"use_listings_cache": False, **options})
    except ModuleNotFoundError as error:
        raise ImportError(f"{url!r} needs {error.name}: pip install {error.name}") from None
    except ImportError as error:
        if "s3fs" in str(error):  # fsspec does not know the extra that installs it.
            raise ImportError(f"{url!r} needs s3fs: pip install 'hbpack[remote]'") from None
        raise ImportError(f"{url!r} cannot be opened: {error}") from None
    except ValueError as error:
        raise RemoteError(f"{url!r} cannot be opened: {error}; check the address") from None


def path_in_system(url: str, options: dict[str, Any]) -> str:
    """The path of a URL in its file system."""
    return str(_system(url, options)[0]._strip_protocol(url)).rstrip("/")


def ask(url: str, options: dict[str, Any], request: Callable[[Any, str], T], what: str) -> T:
    """The answer of a URL's file system to a request, which is retried.

    Args:
        request: (file system, path of the URL in it) -> answer.
        what: see `retry`.

    Raises:
        FileNotFoundError: it names the URL.
        RemoteError: see `retry`.
    """
    system, key = _system(url, options)
    path = path_in_system(url, options)
    try:
        answer = retry(url, lambda: request(system, path), what=what, has_answered=key in _answered)
    except FileNotFoundError:
        _answered.add(key)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url) from None
    _answered.add(key)
    return answer


def _system(url: str, options: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
    """The file system of a URL, and its key."""
    scheme, _, path = url.partition("://")
    key = (os.getpid(), scheme, path.split("/")[0], repr(options))
    if key not in _systems:
        _systems[key] = open_system(url, options)[0]
    return _systems[key], key
