"""The gain over naive packing: at the plan's degree, as HBP compares, and at the best of naive packing's own layouts.

Naive packing is searched for here by every degree that the command line takes, one plan at a time, without the search
of `packer_cli.compare`. The bound is of an epoch in which nobody waits, no row has padding, and each sample
runs where it takes least of those layouts that hold it in memory.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import packer_cli
from packer_cli.config import PlanConfig, validate
from packer_cli.config.gpu_model import load_gpu_model
from packer_cli.cost.predict import GpuModel
from packer_cli.errors import HbpackError
from packer_cli.groups.settings import candidate_lengths, settings_of
from packer_cli.plan.core.cut import make_pieces
from packer_cli.plan.core.types import Int32Array
from tests.benchmark.frontier import shared_lengths
from tests.benchmark.page import LLAMA_8B
from tests.benchmark.report import table

_LONGEST = 131_072
_STEP = "4M"
_AGREES = 0.02
"""By which the printed factors may differ from those of the independent search."""
_NEAR_BOUND = 0.95


def run(work: Path, runs: int) -> str:
    """Measure, and return the text of the section."""
    del runs  # Nothing is timed.
    folder = work / "gain"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_8B))
    model = {"model": str(folder), "gpu": "h100"}
    rows, verdicts = [], []
    for (title, lengths), (gpus, groups) in itertools.product(_data().items(), (_NAMED, _AUTO, _MORE)):
        if title != _SHARED and groups != "auto":
            continue
        print(f"gain: {title}, {gpus} GPUs, {groups}", file=sys.stderr)
        given = {"gpus": gpus, "global_tokens": _STEP, "max_length": _LONGEST if groups == "auto" else None, **model}
        result = packer_cli.compare(lengths, groups=groups, strategies="balanced,naive", **given)
        found = {row.name: row for row in result.rows}
        ours = _seconds(found["balanced"])
        best, where = _search(lengths, gpus, model)
        of_plan, printed = _seconds(found.get("naive@longest", found["naive"])), _seconds(found["naive"])
        bound = _bound(lengths, gpus, model)
        used = ",".join(str(group) for group in result.config.groups)
        rows.append(
            [
                f"{title}, {gpus} GPUs, {groups}{f' ({used})' if groups == 'auto' else ''}", f"{of_plan:.1f}",
                f"{best:.1f} ({where})", f"{ours:.1f}", f"{bound:.1f}", f"{of_plan / ours:.2f}",
                f"{printed / ours:.3f}", f"{best / ours:.3f}", f"{bound / ours:.1%}",
            ]
        )  # fmt: skip
        if abs(printed / best - 1) > _AGREES:
            verdicts.append(f"- Missed: {title}, {gpus} GPUs, {groups}: printed {printed:.1f} s, found {best:.1f} s.")
        if groups == "auto" and bound / ours < _NEAR_BOUND:
            verdicts.append(f"- Missed: {title}, {gpus} GPUs: the bound is {bound / ours:.1%} of the epoch.")
    header = (
        "", "naive at the plan's degree, s", "naive at its best, s", "hbpack, s", "bound, s",
        "gain at the plan's degree", "gain as printed", "gain as searched", "bound of the epoch",
    )  # fmt: skip
    text = (
        "Predicted epochs of Llama 3.1 8B on H100s, samples cut at 128K, 4M tokens a step, with FSDP and sequence "
        "parallelism, which all of hbpack's loaders run. *At the plan's degree* is naive packing at the SP degree of "
        "the plan's longest group, as HBP's tables compare; *at its best* is the fastest of its degrees that fit in "
        "memory, each planned by a call of its own. *Bound*: nobody waits, no row has padding, each sample runs where "
        f"it takes least of what holds it. Targets: the printed gain within {_AGREES:.0%} of the search, and the "
        f"bound at least {_NEAR_BOUND:.0%} of the epoch with automatic groups."
    )
    return "\n\n".join([text, table(header, rows), "\n".join(verdicts) or "- Met."])


_SHARED = "shared corpora"
_NAMED, _AUTO, _MORE = (32, "16k:1,128k:8"), (32, "auto"), (64, "auto")


def _data() -> dict[str, Int32Array]:
    rng = np.random.default_rng(0)
    chats = np.clip(rng.lognormal(np.log(600), 0.7, 20_000), 1, _LONGEST)
    long = rng.integers(32_768, _LONGEST, 400)
    return {
        _SHARED: shared_lengths()[0],
        "chats, 400 documents of 32K to 128K": np.append(chats, long).astype(np.int32),
        "chats, one document of 128K": np.append(chats, _LONGEST).astype(np.int32),
    }


def _seconds(row: Any) -> float:
    return float(row.simulation.overall.seconds)


def _search(lengths: Int32Array, gpus: int, model: dict[str, str]) -> tuple[float, str]:
    """The shortest epoch of naive packing to 128K that fits, and its degree."""
    found = []
    for degree in (2**power for power in range(gpus.bit_length()) if gpus % 2**power == 0):
        group = f"128k:{degree}"
        try:
            plan = packer_cli.plan(lengths, strategy="naive", groups=group, gpus=gpus, global_tokens=_STEP, **model)
        except HbpackError:
            continue  # The model has no such degree.
        epoch = packer_cli.simulate(plan, **model)
        if epoch.fits:
            found.append((epoch.overall.seconds, group))
    return min(found)


def _bound(lengths: Int32Array, gpus: int, model: dict[str, str]) -> float:
    config = validate(PlanConfig, {"groups": "128k", "gpus": gpus, **model})
    of_gpus = load_gpu_model(config, gpus, "the bound")
    samples = make_pieces(lengths, None, _LONGEST, "split").length.astype(np.float64)
    least = np.full(len(samples), np.inf)
    for length in candidate_lengths(_LONGEST, of_gpus.sp_sizes, _LONGEST):
        for group in settings_of(of_gpus, length, of_gpus.layouts(gpus)):
            work, token, fixed = _rates(of_gpus, group)
            seconds = group.num_gpus * ((work * samples + token) * samples + fixed * samples / length)
            np.minimum(least, seconds, out=least, where=samples <= length)
    return float(least.sum()) / gpus


def _rates(model: GpuModel, group: Any) -> tuple[float, float, float]:
    fixed, square, token = (
        float(model.cost.seconds(*of, group.layout, group.checkpoint_layers)) for of in ((0, 0), (1, 0), (0, 1))
    )
    return square - fixed, token - fixed, fixed
