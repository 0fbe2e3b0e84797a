"""hbpack under its own name: `import hbpack` gives what `packer_cli` exports, and is as fast."""

from typing import TYPE_CHECKING, Any

import packer_cli
from packer_cli import __all__ as __all__
from packer_cli import __version__ as __version__

if TYPE_CHECKING:
    from packer_cli import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Import what is used for the first time."""
    try:
        return getattr(packer_cli, name)
    except AttributeError as error:
        raise AttributeError(str(error).replace("packer_cli", "hbpack")) from None


def __dir__() -> list[str]:
    """List the names that users import."""
    return dir(packer_cli)
