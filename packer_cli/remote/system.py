"""Opens the file system of a URL."""

from __future__ import annotations

import os
from typing import Any

from packer_cli.errors import RemoteError


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
