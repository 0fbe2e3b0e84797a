"""The fewest packs, by integer programming; `cutting_stock.py` says when to use it and what it costs.

::

    cutting_stock.py        the packing algorithm, and the bound of the linear program
    columns.py, knapsack.py           column generation: classes of lengths, the linear program, and pricing
    search.py, solver.py              integer solutions
    patterns.py             from patterns to packs
    minmax.py               the smallest possible maximum work of a pack
"""

from packer_cli.plan.packing.ilp.cutting_stock import ALGORITHM, IlpOptions, solve_cutting_stock
from packer_cli.plan.packing.ilp.minmax import min_max_work
from packer_cli.plan.packing.ilp.search import CuttingStock

__all__ = ["ALGORITHM", "CuttingStock", "IlpOptions", "min_max_work", "solve_cutting_stock"]
