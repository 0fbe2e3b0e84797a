"""The one cut of the samples or items of an epoch.

The kernels of items are imported where there are some: flat samples need not wait for them.
"""

from __future__ import annotations

from packer_cli.errors import RunError
from packer_cli.plan.core.pieces import make_pieces
from packer_cli.plan.core.sample_cut import Cut, SizeRule
from packer_cli.plan.core.samples import Samples
from packer_cli.plan.core.types import Pieces


def cut_samples(samples: Samples, rule: SizeRule, seed: int) -> Cut:
    """Cut the samples of an epoch, which are repeated by weight. O(n + pieces)."""
    chosen = samples.chosen(seed)
    if samples.trees is None:
        pieces = make_pieces(samples.lengths, chosen, rule.capacity, rule.overflow)
        return Cut(samples=samples, rule=rule, chosen=chosen, pieces=pieces)
    from packer_cli.plan.core.item_cut import cut_items

    return cut_items(samples, samples.trees, rule, chosen)


def pieces_to_plan(samples: Samples, rule: SizeRule, seed: int) -> Pieces:
    """The pieces to pack, of samples of which only the lengths are known.

    Raises:
        RunError: there is nothing to plan, or a sample is too long under `error`.
    """
    return require_pieces(cut_samples(samples, rule, seed))


def require_pieces(cut: Cut) -> Pieces:
    """The pieces to pack. Raises RunError if there are none, or a sample is too long under `error`."""
    samples, rule = cut.samples, cut.rule
    if rule.overflow == "error" and len(cut.over):
        longest = int(samples.sizes(rule.limits)[cut.over].max())
        what = "sample has" if samples.trees is None else "item takes"
        raise RunError(
            f"the longest {what} {longest} tokens, over the largest group's {rule.capacity}; "
            "choose --overflow split, truncate or drop"
        )
    if not len(cut.pieces):
        raise RunError("there is nothing to plan: no sample is left; add data, or choose longer --groups")
    return cut.pieces
