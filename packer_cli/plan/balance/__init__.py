"""Balance: packs of nearly equal work share an iteration.

::

    rule.py    what a user chooses: `none`, `sort`, `window:K`, each with `+refine` or without
    sort.py    the order of a group's packs (HBP, algorithm 7)
    spread.py  a group's last packs, too few for all ranks
    refine.py  exchanges samples between the packs of an iteration; exchange.py, moves.py and places.py are its kernels
"""

from packer_cli.plan.balance.rule import BalanceRule, parse_balance
from packer_cli.plan.balance.sort import order_packs
from packer_cli.plan.balance.spread import spread

__all__ = ["BalanceRule", "order_packs", "parse_balance", "spread"]
