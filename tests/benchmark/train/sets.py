"""The samples, and a packed set of them for each strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packer_cli.cli.main import main as hbpack
from packer_cli.config import PlanConfig
from packer_cli.config.groups import parse_group
from packer_cli.config.resolve import resolve
from packer_cli.format.constants import PLAN_NAME
from packer_cli.plan.core.samples import Samples
from packer_cli.plan.core.types import Int32Array, Plan
from packer_cli.plan.strategies.registry import STRATEGIES
from packer_cli.shards.plan_file import read_plan
from packer_cli.stages.planning import plan_samples
from tests.benchmark.measure import ROOT, BenchmarkError
from tests.benchmark.paper import Mix
from tests.cli_runner import run

TOKENIZER = ROOT / "examples" / "sample" / "tokenizer"
VOCABULARY = 1024
"""Of that tokenizer."""
PADDED = "padded"

OPTIONS: dict[str, Sequence[str]] = {
    "naive": (),
    PADDED: ("--packing", "padded", "--balance", "none"),
    "hbp": (),
    "balanced": ("--cost", "profile"),
    "flexsp:all": (),
    "wlb": (),
    "hydraulis": ("--parallel", "tp=1,cp=1,pp=1"),
}
"""The plans to compare, with their options beside `--strategy`."""
NEED_PROFILE = {"balanced", "flexsp:all", "wlb", "hydraulis"}


@dataclass(frozen=True, kw_only=True)
class PlannedSet:
    """A strategy's plan; packed, unless its batches are padded."""

    name: str
    plan: Plan
    folder: Path | None


def draw_lengths(longest: int, tokens: int, seed: int) -> Int32Array:
    """Chats, and documents that hold a third of the tokens: int32[n]."""
    mix = Mix(num_chats=10_000, mean_chat=longest / 20, longest_chat=longest // 4, num_long=600,
              shortest_long=longest // 16, longest_long=longest, is_long_uniform=False)  # fmt: skip
    lengths = mix.lengths(seed=seed)
    return lengths[: int(np.searchsorted(np.cumsum(lengths), tokens)) + 1]


def write_samples(lengths: Int32Array, path: Path, seed: int) -> None:
    """Samples of random tokens, as a Parquet file that `hbpack pack` reads."""
    random = np.random.default_rng(seed)
    ids = random.integers(8, VOCABULARY, int(lengths.sum()), dtype=np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    pq.write_table(pa.table({"input_ids": pa.ListArray.from_arrays(offsets, ids)}), path)


def make_set(name: str, samples: Path, lengths: Int32Array, groups: str, num_gpus: int, profile: Path) -> PlannedSet:
    """Plan the samples, and pack them beside their file."""
    if name == PADDED:
        config = PlanConfig(groups=groups, gpus=num_gpus, packing="padded", balance="none")
        config = config.model_copy(update={"groups": config.groups[-1:]})
        return PlannedSet(name=name, plan=plan_samples(Samples(lengths=lengths), resolve(config)), folder=None)
    folder = samples.parent / name
    options = ["--strategy", name, *OPTIONS[name]]
    if name in NEED_PROFILE:
        options += ["--profile", str(profile)]
    if name == "hydraulis":  # Two full rows of the longest group on each of its replicas.
        longest = parse_group(groups.split(",")[-1])
        options += ["--global-tokens", str(2 * longest.capacity * longest.num_dp_ranks(num_gpus))]
    used = STRATEGIES[name].groups([parse_group(group) for group in groups.split(",")])
    groups = ",".join(map(str, used))
    done = run(hbpack, "pack", samples, "--tokenizer", TOKENIZER, "--groups", groups, "--gpus", num_gpus, *options,
               "--output", folder)  # fmt: skip
    if done.code:
        raise BenchmarkError(done.stderr)
    return PlannedSet(name=name, plan=read_plan(folder / PLAN_NAME)[0], folder=folder)


def known_strategies() -> list[str]:
    """Those that this version of hbpack has, and the padded batches."""
    return [name for name in OPTIONS if name == PADDED or name in STRATEGIES]
