"""Balancing: packs of nearly equal work share an iteration.

::

    rule.py    the user's choice: `none`, `sort`, `window:K`, each with or without `+refine`
    sort.py    the order of a group's packs (HBP, algorithm 7)
    spread.py  spreads a group's last packs, too few for all ranks, over rows for every rank
    refine.py  exchanges samples between the packs of an iteration; exchange.py, moves.py and places.py are its kernels
"""

from packer_cli.plan.kernels.balance.rule import BalanceRule, parse_balance
from packer_cli.plan.kernels.balance.sort import order_packs
from packer_cli.plan.kernels.balance.spread import spread

__all__ = ["BalanceRule", "order_packs", "parse_balance", "spread"]
