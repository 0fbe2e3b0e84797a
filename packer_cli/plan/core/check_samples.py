"""The checker of the pieces of samples, which may be items, used by every run and by `hbpack verify`.

The kernels of items are imported where there are some.
"""

from __future__ import annotations

from packer_cli.plan.core.check import check_pieces
from packer_cli.plan.core.pieces import Samples, SizeRule, kept_samples
from packer_cli.plan.core.types import Int32Array, Pieces


def check_samples(pieces: Pieces, samples: Samples, chosen: Int32Array | None, rule: SizeRule) -> None:
    """Prove that the pieces of a plan are those of the chosen samples or items, each whole or cut by the rules.

    Args:
        chosen: see `Samples.chosen`.

    Raises:
        PlanError: they are not.
    """
    if samples.trees is not None:
        from packer_cli.plan.core.check_items import check_items
        from packer_cli.plan.core.items import item_pieces

        _, cut = item_pieces(samples.trees, chosen, rule.of_items)
        check_items(pieces, samples.trees, chosen, rule.of_items, cut.left_out)
        return
    if rule.overflow == "drop":
        chosen = kept_samples(samples.lengths, chosen, rule.capacity)
    check_pieces(pieces, samples.lengths, chosen, is_whole=rule.overflow != "truncate")
