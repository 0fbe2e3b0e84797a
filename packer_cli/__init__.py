"""hbpack: pack, balance and schedule mixed-length training data offline.

In Python, `import packer_cli as hbpack` gives the functions of docs/api.md. The flow, and the rooms that serve it::

    corpus/ -> tokens/ -> plan/ (group, pack, fill, balance, schedule) -> shards/ -> loader/
    text       Arrow      lengths only, pure, numba                     Arrow      torch

Importing this package costs nothing: no torch, numba or pyarrow is loaded before a function is used.
"""

from typing import TYPE_CHECKING

from packer_cli.errors import HbpackError
from packer_cli.lazy import provide
from packer_cli.version import __version__

if TYPE_CHECKING:
    from packer_cli import testing
    from packer_cli.api.compare import compare
    from packer_cli.api.pack import PackedSet, pack
    from packer_cli.api.plan import Plan, plan
    from packer_cli.api.report import report
    from packer_cli.api.simulate import simulate
    from packer_cli.api.stats import stats
    from packer_cli.cli.console import show_progress

__all__ = [
    "HbpackError",
    "PackedSet",
    "Plan",
    "__version__",
    "compare",
    "pack",
    "plan",
    "report",
    "show_progress",
    "simulate",
    "stats",
    "testing",
]

provide(
    __name__,
    {
        "PackedSet": "packer_cli.api.pack",
        "Plan": "packer_cli.api.plan",
        "compare": "packer_cli.api.compare",
        "pack": "packer_cli.api.pack",
        "plan": "packer_cli.api.plan",
        "report": "packer_cli.api.report",
        "show_progress": "packer_cli.cli.console",
        "simulate": "packer_cli.api.simulate",
        "stats": "packer_cli.api.stats",
        "testing": "packer_cli.testing",
    },
)
