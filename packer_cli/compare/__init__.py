"""`hbpack compare`: many plans of the same samples, side by side.

::

    plan options -> rows.py -> row_figures.py, one process a row: plan, check, measure -> side_by_side.py
    memory.py    the peak memory of a row's plan; savings.py: what its epoch saves
"""

from packer_cli.compare.side_by_side import compare

__all__ = ["compare"]
