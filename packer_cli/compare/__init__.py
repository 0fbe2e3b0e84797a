"""`hbpack compare`: many plans of the same samples, side by side.

::

    plan options -> rows.py -> row_figures.py, one process a row: plan, check, measure -> side_by_side.py
    savings.py    what a row's epoch saves, and which to take
"""

from packer_cli.compare.compared import ComparedRow
from packer_cli.compare.side_by_side import Comparison, compare

__all__ = ["ComparedRow", "Comparison", "compare"]
