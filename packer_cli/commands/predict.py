"""`pack --dry-run`: what a run gives and takes, from the listing and a sample of each input. It writes nothing.

Figures are scaled by bytes, times by those that the sample takes here, in the processes that a run would have. The
rates of planning and writing, and the bytes around tokens, were measured (docs/scale.md). Nothing is planned:
iterations are those of full rows.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from packer_cli.commands.output_folder import refuse_other, require_usable
from packer_cli.commands.plan import check_options
from packer_cli.commands.tokenize import CorpusStore
from packer_cli.commands.write import refuse_index
from packer_cli.config import StorePlanConfig, TokenizeConfig, WriteConfig
from packer_cli.config.fields import NUM_HASHES, bound_of
from packer_cli.corpus.types import CorpusFile
from packer_cli.corpus.unchanged import is_pinned, is_small
from packer_cli.engine.local import Engine
from packer_cli.errors import RunError
from packer_cli.format.metrics import ReasonCount
from packer_cli.plan.core.mixture import in_tokens
from packer_cli.remote.file import FIRST_BLOCK, LARGEST_BLOCK
from packer_cli.remote.system import is_url
from packer_cli.sizes import TokenShare
from packer_cli.tokens.accounts import reasons_of

_FIGURES = ("num_samples", "num_rejected", "num_tokens", "num_loss_tokens", "num_bytes")
_MACHINES = (1, 4, 16, 64)
_STARTS = 2.0
"""Time of a command besides its work, to that of a dry run: kernels, the plan's and the set's files come on top."""
_PLAN_SECONDS, _PLAN_MEMORY, _PLAN_BYTES, _PLAN_BYTES_OF_PACK = 0.75e-6, 20, 21, 34
"""Time and memory of planning a sample, its bytes in the plan, and those of a pack."""
_WRITE_RATE, _SHARD_BYTES_OF_PACK = 0.48e9, 140
"""Bytes of shards that a core writes a second, and those around the tokens of a pack."""
_RANK_BYTES, _ROW_BYTES = 2500, 32
"""Bytes of the file of a rank, and more of each iteration."""
_MAIN_MEMORY = 150 << 20
_LISTING = 5
"""Requests that list an input, besides one for each thousand objects."""
_ENDS = [FIRST_BLOCK * end for end in (1, 3, 5, 7, 9, 13, 21, 37)]
"""Bytes that so many requests read of a file; the next ones have `LARGEST_BLOCK`."""


@dataclass(frozen=True, kw_only=True)
class PredictedRun:
    """A run of `pack` on one machine, or of a job array on several like it."""

    machines: int
    """Number of machines."""
    seconds: float
    """Time of the run; of an array, of all its commands."""
    requests: int
    """Requests that read remote inputs."""


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """Result of `pack` with `dry_run`: what a run would give and take."""

    records: int
    """Records of the inputs."""
    rejected: int
    """Records that are rejected."""
    samples: int
    """Samples, or items where some hold several."""
    tokens: int
    """Tokens of the samples."""
    loss_tokens: int
    """Tokens that carry a loss."""
    epoch_tokens: int
    """Tokens of an epoch, by the weights of the inputs and the capacity of packs, without what is set aside."""
    iterations: int | None
    """Iterations of an epoch, as if all rows were full; None where `groups` is `auto`."""
    token_bytes: int
    """Bytes of the token store, which `keep_tokens=False` removes in the end."""
    shard_bytes: int
    """Bytes of the shards."""
    plan_bytes: int
    """Bytes of the plan and the rank manifests."""
    memory_bytes: int
    """Memory that a machine needs."""
    input_bytes: int
    """Bytes of the inputs."""
    sampled_bytes: int
    """Bytes of the inputs on which the figures stand."""
    workers: int
    """Worker processes of each machine."""
    runs: tuple[PredictedRun, ...]
    """The run on one machine, and on several."""
    reasons: tuple[ReasonCount, ...]
    """Rejected records of the sample, by the kind of reason."""


def predict_pack(
    tokenize: TokenizeConfig, plan: StorePlanConfig, write: WriteConfig, folder: Path, engine: Engine
) -> DryRun:
    """Predict a run. Raises the errors of its options and inputs, and RunError if the sample has no usable record."""
    begun = time.perf_counter()
    groups = check_options(plan, tokenize.unit).config.groups
    refuse_index(write, tokenize.unit)
    require_usable(folder)
    if plan.validation is not None:
        refuse_other(folder)
    sources, found, reading, num_excluded = CorpusStore(tokenize, folder).sample(engine)
    figures, parts, workers = np.zeros((len(sources), 6)), [], engine.workers
    working = sum(each.seconds for _, some in found for each in some) / workers
    start = _STARTS * max(0.0, time.perf_counter() - begun - reading - working)
    for stratum, some in found:
        source, num_bytes = stratum.files[0].source_id, stratum.num_bytes
        values = np.sum([[*(getattr(each.part, name) for name in _FIGURES), each.seconds] for each in some], axis=0)
        times = num_bytes / sum(place.num_bytes for place in stratum.places)
        records = stratum.count_records(values[:2].sum())
        figures[source] += values * np.repeat([records / max(values[:2].sum(), 1), times], [2, 4])
        parts += [(source, times, each.lengths) for each in some]
    samples, rejected, tokens, loss_tokens, token_bytes, seconds = figures.sum(axis=0).tolist()
    reasons = reasons_of(file for _, some in found for each in some for file in each.part.files)
    if not samples:
        why = f", most often as: {reasons[0].reason}" if reasons else ""
        raise RunError(f"no record of the sample can be used{why}; correct the data, or name others")

    of_inputs = figures[:, 2].tolist()
    weights = in_tokens([source.share for source in sources], of_inputs)
    limits, of_groups = np.array([group.capacity for group in groups]), np.zeros(len(groups))
    for source, times, lengths in parts:
        weight = weights[source]
        weight = weight.tokens / max(of_inputs[source], 1) if isinstance(weight, TokenShare) else weight
        group = np.searchsorted(limits, np.minimum(lengths, limits[-1]))
        rest = {"split": lengths, "truncate": limits[-1]}.get(plan.overflow, 0)
        kept = np.where(lengths > limits[-1], rest, lengths)
        of_groups += np.bincount(group, kept * times * weight, len(groups))
    excluded = min(num_excluded, samples) / samples
    aside = _share_aside(plan.validation, samples * (1 - excluded))
    rejected += excluded * samples
    samples, tokens, loss_tokens, token_bytes = (
        each * (1 - excluded) for each in (samples, tokens, loss_tokens, token_bytes)
    )
    of_groups *= (1 - excluded) * (1 - aside)
    packs, epoch_tokens = of_groups / limits, float(of_groups.sum())
    iterations = math.ceil(packs @ [group.num_gpus for group in groups] / plan.gpus)
    shard_bytes = float(packs.sum()) * _SHARD_BYTES_OF_PACK
    shard_bytes += 0 if write.index_only else token_bytes * epoch_tokens / max(tokens, 1)
    shard_bytes += token_bytes * aside
    plan_bytes = samples * _PLAN_BYTES + packs.sum() * _PLAN_BYTES_OF_PACK
    plan_bytes += plan.epochs * (plan.gpus + 1) * (_RANK_BYTES + _ROW_BYTES * iterations)
    memory = max(samples * _PLAN_MEMORY, workers * max(each.memory for _, some in found for each in some))

    files = [file for stratum, _ in found for file in stratum.files]
    input_bytes = sum(file.num_bytes for file in files)
    sampled_bytes = sum(place.num_bytes for stratum, _ in found for place in stratum.places)
    listing = sum(is_url(source.name) for source in sources) * _LISTING + sum(is_url(f.path) for f in files) // 1000
    requests, seconds = sum(map(_requests, files)), (seconds + shard_bytes / _WRITE_RATE) / workers
    seconds += reading * input_bytes / sampled_bytes
    runs = [
        PredictedRun(
            machines=number,
            seconds=start * (1 if number == 1 else 3) + samples * _PLAN_SECONDS + seconds / number,
            requests=requests + number * listing,
        )
        for number in _MACHINES
    ]
    return DryRun(
        records=round(samples + rejected),
        rejected=round(rejected),
        samples=round(samples),
        tokens=round(tokens),
        loss_tokens=round(loss_tokens),
        epoch_tokens=round(epoch_tokens),
        iterations=iterations if plan.groups else None,
        token_bytes=round(token_bytes),
        shard_bytes=round(shard_bytes),
        plan_bytes=round(plan_bytes),
        memory_bytes=round(_MAIN_MEMORY + memory),
        input_bytes=input_bytes,
        sampled_bytes=round(sampled_bytes),
        workers=workers,
        runs=tuple(runs),
        reasons=reasons,
    )


def _share_aside(validation: str | None, num_samples: float) -> float:
    """Return the share of the samples that is set aside for validation, at most all."""
    if validation is None:
        return 0.0
    bound = bound_of(validation)
    return min(1.0, int(validation) / max(num_samples, 1)) if bound is None else bound / NUM_HASHES


def _requests(file: CorpusFile) -> int:
    """Estimate the requests that read a file: to the cache of the node, or to cut it and again for its parts."""
    if not is_url(file.path) or is_small(file):
        return int(is_url(file.path))
    return _blocks(file.num_bytes) * (1 if is_pinned(file) else 3)


def _blocks(num_bytes: int) -> int:
    """Count the requests that read so many bytes forward."""
    return bisect_left(_ENDS, num_bytes) + 1 + max(0, (num_bytes - _ENDS[-1] - 1) // LARGEST_BLOCK)
