"""`hbpack compare`: many plans of the same samples, side by side.

::

    plan options -> rows.py -> row_figures.py, one process a row: plan, check, measure -> side_by_side.py
    memory.py    the peak memory of a row's plan; savings.py: what its epoch saves
"""

from packer_cli.compare.side_by_side import ComparedRow, Comparison, compare, with_savings

__all__ = ["ComparedRow", "Comparison", "compare", "with_savings"]
