"""Balancing: packs of nearly equal work share an iteration.

::

    sort.py    the user's choice: `none`, `sort`, `window:K`, each with or without `+refine`; the order that it gives;
               spreads a group's last packs, too few for all ranks, over rows for every rank
    refine.py  exchanges samples between the packs of an iteration; exchange.py holds its kernels
"""

from packer_cli.plan.kernels.balance.sort import BalanceRule, order_packs, parse_balance, spread

__all__ = ["BalanceRule", "order_packs", "parse_balance", "spread"]
