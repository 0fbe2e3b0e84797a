"""Whether a plan and the schedules for other numbers of GPUs keep their rules. Price: O(pieces + slots)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from packer_cli.config import PlanConfig
from packer_cli.format.entries import Generation
from packer_cli.plan.build import check_rest
from packer_cli.plan.core.check import check_pieces, check_plan
from packer_cli.plan.core.samples import kept_samples, weighted_samples
from packer_cli.plan.core.types import FILLER, Pieces, Plan, Schedule
from packer_cli.tokens.store import TokenStore


def prove_pieces(pieces: Pieces, config: PlanConfig, store: TokenStore | None) -> None:
    """Prove that the pieces are the samples that the options ask for, each whole; PlanError where they are not.

    Without a store only that each sample's pieces join from its first token on.
    """
    if store is None:
        end = np.add(pieces.start, pieces.length, dtype=np.int64)
        ends = np.zeros(int(pieces.sample.max(initial=-1)) + 1, dtype=np.int64)
        np.maximum.at(ends, pieces.sample, end)
        check_pieces(pieces, ends.astype(np.int32), np.sort(pieces.sample[pieces.start == 0]), is_whole=True)
        return
    lengths = store.lengths()
    samples = weighted_samples(store.sources(), [source.share for source in store.index.sources], config.seed, lengths)
    if config.overflow == "drop":
        samples = kept_samples(lengths, samples, config.groups[-1].capacity)
    check_pieces(pieces, lengths, samples, is_whole=config.overflow != "truncate")


def prove_schedules(plan: Plan, generation: Generation, schedules: Sequence[Schedule]) -> None:
    """Prove the schedules of a generation; PlanError where one breaks a rule."""
    dealt = replace(plan, num_gpus=generation.num_gpus)
    for epoch, schedule in zip(generation.epochs, schedules, strict=True):
        if epoch.first_step:
            packs = schedule.slot_pack[schedule.slot_pack != FILLER]
            check_rest(dealt, schedule, np.unique(packs), generation.num_gpus)
        else:
            check_plan(replace(dealt, epochs=(schedule,)))
