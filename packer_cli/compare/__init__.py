"""`hbpack compare`: many plans of the same samples, side by side.

::

    plan options -> rows.py -> row_process.py, layouts, and one process a row: plan, check, measure -> comparison.py
    outcome.py    what came of a row, and what its epoch saves; comparison.py says which row to take
"""

from packer_cli.compare.comparison import Comparison, compare
from packer_cli.compare.outcome import ComparedRow

__all__ = ["ComparedRow", "Comparison", "compare"]
