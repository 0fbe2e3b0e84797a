"""The fewest packs, by integer programming; `cutting_stock.py` says when to use it and what it costs.

::

    cutting_stock.py  the packing algorithm, and its first try: each pack filled as well as it can be
    columns.py        column generation: classes of lengths, the linear program, its bound, and pricing
    solver.py         the solver that PuLP calls
"""

from packer_cli.plan.packing.ilp.cutting_stock import ALGORITHM

__all__ = ["ALGORITHM"]
