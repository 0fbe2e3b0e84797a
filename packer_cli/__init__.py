"""hbpack: pack, balance and schedule mixed-length training data offline.

In Python, `import hbpack` gives the functions of docs/api.md, which are here. The flow, and the rooms that serve it::

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
    from packer_cli.cli.console import show_progress
    from packer_cli.commands.compare import compare
    from packer_cli.commands.find import find
    from packer_cli.commands.pack import PackedSet, pack
    from packer_cli.commands.plan import Plan, plan
    from packer_cli.commands.report import report
    from packer_cli.commands.simulate import simulate
    from packer_cli.commands.stats import stats

__all__ = [
    "HbpackError",
    "PackedSet",
    "Plan",
    "__version__",
    "compare",
    "find",
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
        "PackedSet": "packer_cli.commands.pack",
        "Plan": "packer_cli.commands.plan",
        "compare": "packer_cli.commands.compare",
        "find": "packer_cli.commands.find",
        "pack": "packer_cli.commands.pack",
        "plan": "packer_cli.commands.plan",
        "report": "packer_cli.commands.report",
        "show_progress": "packer_cli.cli.console",
        "simulate": "packer_cli.commands.simulate",
        "stats": "packer_cli.commands.stats",
        "testing": "packer_cli.testing",
    },
)
