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
    from packer_cli.commands.doctor import doctor
    from packer_cli.commands.export import export
    from packer_cli.commands.find import find
    from packer_cli.commands.groups import groups
    from packer_cli.commands.init import init
    from packer_cli.commands.pack import PackedSet, pack
    from packer_cli.commands.planned import Plan, plan
    from packer_cli.commands.rebalance import rebalance
    from packer_cli.commands.report import report
    from packer_cli.commands.simulate import simulate
    from packer_cli.commands.stages import append, tokenize, write
    from packer_cli.commands.stats import stats
    from packer_cli.commands.status import status
    from packer_cli.commands.verify import verify
    from packer_cli.commands.versions import prune, restore, versions
    from packer_cli.engine.progress import on_progress

__all__ = [
    "HbpackError",
    "PackedSet",
    "Plan",
    "__version__",
    "append",
    "compare",
    "doctor",
    "export",
    "find",
    "groups",
    "init",
    "on_progress",
    "pack",
    "plan",
    "prune",
    "rebalance",
    "report",
    "restore",
    "show_progress",
    "simulate",
    "stats",
    "status",
    "testing",
    "tokenize",
    "verify",
    "versions",
    "write",
]

provide(
    __name__,
    {name: f"packer_cli.commands.{name}" for name in __all__}
    | {
        "PackedSet": "packer_cli.commands.pack",
        "Plan": "packer_cli.commands.planned",
        "append": "packer_cli.commands.stages",
        "on_progress": "packer_cli.engine.progress",
        "plan": "packer_cli.commands.planned",
        "prune": "packer_cli.commands.versions",
        "restore": "packer_cli.commands.versions",
        "show_progress": "packer_cli.cli.console",
        "testing": "packer_cli.testing",
        "tokenize": "packer_cli.commands.stages",
        "write": "packer_cli.commands.stages",
    },
)
