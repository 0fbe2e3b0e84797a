"""Whether packs, plan and ranks say the same: each sample once, each pack once over all ranks, tokens as in the store.

Price of a plan and its schedules for other numbers of GPUs: O(pieces + slots).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.config import PlannedConfig
from packer_cli.config.resolve import size_rule
from packer_cli.errors import FormatError
from packer_cli.format.arrays import Columns
from packer_cli.format.checksums import CHECKSUM, require_damage, row_checksums
from packer_cli.format.constants import PACKS_PER_BATCH
from packer_cli.format.entries import EpochInfo, Generation
from packer_cli.format.items import find_wrong_items
from packer_cli.format.loss_spans import STARTS, STOPS, WEIGHTS, find_wrong_spans
from packer_cli.format.manifest import Manifest, SetFolder
from packer_cli.format.ragged import Lists, offsets_of
from packer_cli.format.ranks import read_iterations, read_rank
from packer_cli.format.schema import ITEM_VALUES, TREE_COLUMNS, iterations_path
from packer_cli.format.shards import ShardFile, row_of
from packer_cli.plan.build import check_rest
from packer_cli.plan.core.check import check_pieces, check_plan
from packer_cli.plan.core.types import FILLER, Pieces, Plan
from packer_cli.remote.local import open_source
from packer_cli.shards.ranks import EpochColumns
from packer_cli.shards.write import PlannedPacks, ShardTask
from packer_cli.sizes import counted
from packer_cli.tokens.samples import StoreSamples
from packer_cli.tokens.store import TokenStore

_OF_THE_STORE = ("source_ids", "input_ids", STARTS, STOPS, WEIGHTS, *TREE_COLUMNS, "item_kinds", *ITEM_VALUES)


def check_shard(folder: Path, shard: ShardTask, packs: PlannedPacks, schema: pa.Schema) -> str | None:
    """Describe a fault in a shard's contents; None where there is none. Price: reading the shard once, and its tokens.

    Args:
        packs: without a store, tokens and sources are not compared.
        schema: the columns of shards.
    """
    try:
        with open_source(folder / shard.name, goes_forward=True) as source:
            file = ShardFile(source, schema)
            for number in range(file.num_batches):
                first = shard.first_pack + number * PACKS_PER_BATCH
                stop = min(first + PACKS_PER_BATCH, shard.first_pack + shard.num_packs)
                batch = file.batch(number, validates=True)
                num_rows = len(batch[CHECKSUM]) if batch else 0
                if num_rows != stop - first:
                    raise ValueError(f"its record batch {number} has {num_rows} packs")
                _check_batch(batch, first, stop, packs)
            if file.num_batches != -(-shard.num_packs // PACKS_PER_BATCH):
                return f"it does not hold its {shard.num_packs} packs"
    except (OSError, ValueError, FormatError, pa.ArrowException) as error:
        require_damage(error)
        return str(error)
    return None


def _check_batch(batch: Columns, first: int, stop: int, packs: PlannedPacks) -> None:
    """Raise ValueError if something is wrong with the packs first .. stop - 1."""
    columns: Columns = packs.columns(first, stop)
    tokens = offsets_of(columns["num_tokens"])
    if "input_ids" in batch and packs.store is None:
        columns["input_ids"] = Lists(tokens, batch["input_ids"].values)
        columns[CHECKSUM] = row_checksums(batch)
    names = [name for name in batch if name in columns]
    # The checksum last: it covers the others.
    for name in sorted(names, key=lambda name: (name == CHECKSUM, isinstance(columns[name], Lists))):
        found, values = batch[name], columns[name]
        source = "token store" if name in _OF_THE_STORE else "plan"
        if isinstance(found, Lists):
            if not np.array_equal(found.offsets, values.offsets):
                raise ValueError(f"the lengths of {name} in packs {first} to {stop - 1} are not the {source}'s")
            wrong = np.flatnonzero(_differ(found.values, values.values))
            if len(wrong):
                pack = first + int(np.searchsorted(found.offsets, wrong[0], side="right")) - 1
                raise ValueError(f"pack {pack} has other {name} than the {source}")
        elif len(wrong := np.flatnonzero(found != values)):
            raise ValueError(f"pack {first + wrong[0]} has another {name} than the plan")
    if "input_ids" not in batch:
        return
    if packs.plan.pieces.of_items:
        for number in range(stop - first):
            why = find_wrong_items(row_of(batch, number))
            if why is not None:
                raise ValueError(f"pack {first + number}: {why}")
        return
    ends = batch["cu_seqlens"]
    samples = np.unique(ends.values + np.repeat(tokens[:-1], np.diff(ends.offsets)))
    wrong_row = find_wrong_spans(batch, samples)
    if wrong_row is not None:
        raise ValueError(f"the loss spans of pack {first + wrong_row} are wrong")


def _differ(found: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.bool_]:
    """Compare numbers one by one: True where they differ. NaN, which says that there is none, equals itself."""
    differ: NDArray[np.bool_] = found != wanted
    return differ if found.dtype.kind != "f" else differ & ~(np.isnan(found) & np.isnan(wanted))


def prove_pieces(pieces: Pieces, config: PlannedConfig, store: TokenStore | None) -> None:
    """Prove that the pieces are the samples that the options ask for, each whole; raise PlanError where they are not.

    Without a store, prove only that each sample's pieces join from its first token on; of items, prove nothing.
    """
    if store is None:
        if pieces.of_items:
            return
        end = np.add(pieces.start, pieces.length, dtype=np.int64)
        ends = np.zeros(int(pieces.sample.max(initial=-1)) + 1, dtype=np.int64)
        np.maximum.at(ends, pieces.sample, end)
        check_pieces(pieces, ends.astype(np.int32), np.sort(pieces.sample[pieces.start == 0]), is_whole=True)
        return
    samples = StoreSamples(store).of(config)
    samples.cut(size_rule(config), config.seed).check(pieces)


def prove_schedules(plan: Plan, generation: Generation) -> None:
    """Prove the schedules of a plan, those of a generation; raise PlanError where one breaks a rule."""
    for epoch, schedule in zip(generation.epochs, plan.epochs, strict=True):
        if epoch.first_step:
            packs = schedule.slot_pack[schedule.slot_pack != FILLER]
            check_rest(plan, schedule, np.unique(packs), generation.num_gpus)
        else:
            check_plan(replace(plan, epochs=(schedule,)))


def check_epoch(
    folder: Path,
    manifest: Manifest,
    generation: Generation,
    epoch: EpochInfo,
    columns: EpochColumns | None,
    skip: Collection[str],
) -> dict[str, str]:
    """Describe the faults in the rank manifests of an epoch, by path. Price: all of them, read once.

    Args:
        generation: the generation of the epoch.
        columns: contents that the manifests should have; None where these are not known.
        skip: files that are known to be damaged.
    """
    found: dict[str, str] = {}
    times = np.zeros(sum(group.num_packs for group in manifest.groups), dtype=np.int64)
    files, common = SetFolder(folder), iterations_path(epoch.path)
    for rank in (None, *epoch.first_ranks):
        path = common if rank is None else epoch.find_rank(rank).path
        if path in skip:
            continue
        try:
            if rank is None:
                table = read_iterations(files.read(path), epoch, generation.fingerprint, compares=False)
                planned = columns.iterations if columns else {}
            else:
                table = read_rank(files, epoch, rank, generation.fingerprint, compares=False)
                if columns and rank not in columns.first_ranks:
                    raise ValueError("the plan has no such ranks")
                planned = columns.of_ranks([rank]) if columns else {}
            wrong = [name for name, values in planned.items() if not np.array_equal(values, table[name])]
            if wrong:
                raise ValueError(f"its {', '.join(wrong)} are not the plan's")
            if rank is not None:
                # A replica's packs count once, in the file of its first GPU.
                packs = table["pack"][(table["first_gpu"] == rank) & (table["pack"] >= 0)]
                if len(packs) and packs.max() >= len(times):
                    raise ValueError("it names packs that the set does not have")
                np.add.at(times, packs, 1)
        except (OSError, ValueError) as error:
            require_damage(error)
            found[path] = str(error)
    if found or any(path in skip for path, _ in epoch.files):
        return found  # Others' packs cannot be counted.
    wrong_packs = np.flatnonzero(times > 1 if epoch.first_step else times != 1)
    if len(wrong_packs):
        pack = int(wrong_packs[0])
        others = f"; {counted(len(wrong_packs) - 1, 'other pack')} likewise" if len(wrong_packs) > 1 else ""
        found[epoch.path] = f"pack {pack} is read {counted(int(times[pack]), 'time')} over all ranks, not once{others}"
    return found
