"""One process of the measurement; `torchrun -m tests.benchmark.train.worker JOB.json` starts them all.

P processes run the ranks of any number of GPUs: process p those whose number leaves p over P. A replica's ranks follow
each other, so P processes run them at the same time, if its degree divides P.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812

from packer_cli.config.gpu_model import read_shape
from packer_cli.format.layout import Layout
from packer_cli.loader import PackedDataset
from packer_cli.loader.formats.base import is_list_of_batches
from packer_cli.loader.parallel import SPGroups, init_sp_groups
from packer_cli.loader.passes import IGNORE_INDEX
from packer_cli.measure.device import Device
from packer_cli.measure.kernels import choose_kernel, split_evenly
from packer_cli.measure.subject import Subject
from tests.benchmark.train.attention import TrainedAttention, exchange
from tests.benchmark.train.padded import PaddedDataset

WARM_UP = 2
"""Iterations of each set's first replica that are run before, and not timed."""
PROFILE = "profile"
"""The name of the profile's rows among the sets."""
LINKS = "links"
"""The name of what CP ranks exchange."""


def main(path: Path) -> None:
    """Run the job, and write seconds of sets, of the profile's rows and of exchanges, NaN where nothing ran here.

    Those of a set are float64 [runs, iterations, ranks], those of the rows float64 [runs, rows], those of exchanges
    of keys and values float64 [runs, 1].
    """
    job = json.loads(path.read_bytes())
    device = Device(job["device"])
    dist.init_process_group("nccl" if device.is_gpu else "gloo")
    process, num_processes = dist.get_rank(), dist.get_world_size()
    groups = init_sp_groups({layout: [0] for layout in (Layout(sp=num_processes), Layout(cp=num_processes))})
    config = Path(job["model"])
    _, kernel = choose_kernel("auto", device.device)
    attention = TrainedAttention(kernel)
    subject = Subject(config, read_shape(config), "plain", attention, device.device, chunked_logits=True,
                      shard=False)  # fmt: skip
    pair = torch.zeros(job["exchanged_bytes"] // num_processes, dtype=torch.uint8, device=device.device).view(
        torch.float32
    )
    ranks = range(process, job["num_gpus"], num_processes)
    sets = {name: {rank: _open(entry, rank, job) for rank in ranks} for name, entry in job["sets"].items()}
    turns, rows = job["turns"], job["rows"]
    runs = {name: _runs(turns[name]) for name in sets}
    runs |= {PROFILE: [job["runs_of_rows"]] * len(rows), LINKS: [job["runs_of_links"]]}
    seconds = {name: np.full((max(runs[name]), len(runs[name]), job["num_gpus"]), np.nan) for name in sets}
    seconds |= {name: np.full((max(runs[name]), len(runs[name])), np.nan) for name in (PROFILE, LINKS)}

    with device.one_thread():
        for of_ranks in sets.values():
            first = of_ranks[process]
            for i in range(min(WARM_UP, len(first))):
                _run(first[i], subject, attention, groups, device)
        for name, i, run in _in_turn(runs):
            if name == LINKS:
                seconds[name][run, i] = device.seconds_together(lambda: exchange(pair))
                continue
            if name == PROFILE:
                attention.sharding = None
                seconds[name][run, i] = _run_row(rows[i], subject, groups, device)
                continue
            for rank in turns[name][i]["ranks"]:
                if rank in ranks:
                    seconds[name][run, i, rank] = _run(sets[name][rank][i], subject, attention, groups, device)
            subject.model.zero_grad(set_to_none=False)
    np.savez(f"{job['output']}-{process}.npz", **seconds)
    dist.destroy_process_group()


def _open(entry: Mapping[str, Any], rank: int, job: Mapping[str, Any]) -> Any:
    if "rows" in entry:
        return PaddedDataset(entry["rows"][rank], job["vocabulary_size"])
    return PackedDataset(entry["folder"], rank, job["num_gpus"], lockstep=entry["lockstep"])


def _runs(turns: Sequence[Mapping[str, Any]]) -> list[int]:
    """How often each iteration of a set runs."""
    return [turn["runs"] for turn in turns]


def _in_turn(runs: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, int, int]]:
    """The runs of all iterations of all sets, so mixed that those of each set are spread over the whole time."""
    for_set = {name: sorted((run, i) for i, times in enumerate(of_set) for run in range(times))
               for name, of_set in runs.items()}  # fmt: skip
    places = [((k + 0.5) / len(of_set), name, i, run) for name, of_set in for_set.items()
              for k, (run, i) in enumerate(of_set)]  # fmt: skip
    yield from ((name, i, run) for _, name, i, run in sorted(places))


def _run_row(row: Mapping[str, int], subject: Subject, groups: SPGroups, device: Device) -> float:
    """Seconds of a row of the profile, run as `hbpack profile` does."""
    layout = Layout(sp=row["sp_size"])
    group = groups.for_batch({**layout.sizes, **layout.place(dist.get_rank() % layout.sp)._asdict()})
    samples = split_evenly(row["length"], row["num_samples"])
    return device.seconds_together(lambda: subject.run(samples, row["checkpoint_layers"], group))


def _run(item: Any, subject: Subject, attention: TrainedAttention, groups: SPGroups, device: Device) -> float:
    """Seconds of a rank's micro-batches of one iteration."""
    batches: Sequence[Any] = item if is_list_of_batches(item) else [item]
    total = 0.0
    for batch in batches:
        group = groups.for_batch(batch)
        borders = batch["cu_seq_lens_q"].tolist()
        # A slice of a row comes with shifted labels; those of a whole row are shifted here.
        labels = batch.get("shift_labels")
        if labels is None:
            labels = F.pad(batch["labels"], (0, 1), value=int(IGNORE_INDEX))[..., 1:]
        row = [x[0].to(device.device) for x in (batch["input_ids"], batch["position_ids"], labels)]
        samples = tuple(stop - start for start, stop in itertools.pairwise(borders))
        layers = batch["checkpoint_layers"]
        attention.sharding = batch["sp_sharding"] if batch["cp_size"] > 1 else None
        if group is not None:
            dist.barrier(group)
        total += device.seconds(lambda a=(*row, samples, layers, group): subject.run_row(*a))
    return total


if __name__ == "__main__":
    main(Path(sys.argv[1]))
