"""One stage of every pipeline; `torchrun -m tests.benchmark.train.pipeline_worker JOB.json` starts one a process.

By wall clock: what a pipeline adds is waiting, which takes no CPU time. A stage alone and the pipeline take turns, and
all stages run alone at once, since they share the memory in a pipeline too.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

from examples.pipeline_stages import Decoder, Layer, run_pipeline
from packer_cli.loader import PackedDataset
from packer_cli.loader.losses import batch_losses
from packer_cli.measure.device import Device
from packer_cli.measure.kernels import split_evenly

Batch = dict[str, Any]


def main(path: Path) -> None:
    """Run the job, and write wall seconds of each pipeline's steps and of this stage alone in them.

    Of a pipeline NAME float64 [rounds, steps], of its stages `NAME alone` float64 [rounds, micro-batches, 2], of the
    forward and the backward pass; `NAME offsets` divides the micro-batches among the steps.
    """
    job = json.loads(path.read_bytes())
    device = Device(job["device"])
    if not device.is_gpu:
        _stay_on_a_busy_core(int(os.environ["LOCAL_RANK"]), job["size"])
    dist.init_process_group("nccl" if device.is_gpu else "gloo")
    seconds: dict[str, list[Any]] = {}
    with device.one_thread():
        pipelines = {name: _open(entry, job, device) for name, entry in job["pipelines"].items()}
        for pipeline in pipelines.values():
            pipeline.alone(0)
            pipeline.run(0)
        for _ in range(job["rounds"]):
            for name, pipeline in pipelines.items():
                alone, together = [], []
                for step in range(len(pipeline.steps)):
                    dist.barrier()
                    alone += pipeline.alone(step)
                    dist.barrier()
                    together.append(pipeline.seconds(lambda p=pipeline, i=step: p.run(i)))
                seconds.setdefault(name, []).append(together)
                seconds.setdefault(f"{name} alone", []).append(alone)
    offsets = {f"{name} offsets": np.cumsum([0, *map(len, each.steps)]) for name, each in pipelines.items()}
    measured = {name: np.array(each) for name, each in seconds.items()}
    np.savez(f"{job['output']}-{dist.get_rank()}.npz", **measured, **offsets)
    dist.destroy_process_group()


def _stay_on_a_busy_core(number: int, size: Mapping[str, int]) -> None:
    """Run on one core, which a process that gives way to all others keeps busy while this one waits.

    Cores share memory, and often more, so that a stage would run faster while the other waits.
    """
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})
    multiprocessing.get_context("fork").Process(target=_keep_busy, args=(size,), daemon=True).start()


def _keep_busy(size: Mapping[str, int]) -> None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    torch.set_num_threads(1)
    layer, x = Layer(size["hidden"]), torch.randn(size["longest"], size["hidden"])
    while True:
        layer(x, torch.tensor([0, len(x)]), None).sum().backward()


class Pipeline(ABC):
    """The parts of a decoder that this process runs as its stage.

    Args:
        steps: micro-batches of each step.
        num_parts: into which a stage is divided.
    """

    def __init__(
        self, steps: Sequence[Sequence[Batch]], num_parts: int, size: Mapping[str, int], device: Device
    ) -> None:
        self.steps = [[_moved(batch, device.device) for batch in step] for step in steps]
        self.num_parts = num_parts * dist.get_world_size()
        self.parts = {}
        self._device = device
        for part in range(dist.get_rank(), self.num_parts, dist.get_world_size()):
            torch.manual_seed(0)
            decoder = Decoder(**size)
            decoder.keep_stage(part, self.num_parts)
            self.parts[part] = decoder.to(device.device)

    @abstractmethod
    def run(self, step: int) -> None:
        """Forward and backward of a step on this stage, as a part of the pipeline."""

    def seconds(self, work: Callable[[], Any]) -> float:
        """Wall seconds of a call, until the device is done."""
        begin = time.perf_counter()
        work()
        if self._device.is_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    def alone(self, step: int) -> list[tuple[float, float]]:
        """Seconds of forward and backward of each micro-batch of a step on this stage, which waits for no other."""
        return [self._alone(batch) for batch in self.steps[step]]

    def _alone(self, batch: Batch) -> tuple[float, float]:
        forward = backward = 0.0
        for part, decoder in self.parts.items():
            shape = batch["input_ids"].shape[1], decoder.hidden
            x = torch.randn(shape, device=self._device.device, requires_grad=True) if part else None
            is_last = part == self.num_parts - 1
            grad = None if is_last else torch.randn(shape, device=self._device.device)
            out: list[torch.Tensor] = []

            def ahead(decoder: Decoder = decoder, x: Any = x, part: int = part, out: Any = out) -> None:
                found = decoder(x, batch, part, self.num_parts)
                out.append(_loss(found, batch) if part == self.num_parts - 1 else found)

            forward += self.seconds(ahead)
            backward += self.seconds(lambda out=out, grad=grad: out[0].backward(grad))
        return forward, backward


class EqualRows(Pipeline):
    """One step of equal rows, under torch's own schedules."""

    def __init__(self, entry: Mapping[str, Any], size: Mapping[str, int], device: Device) -> None:
        row = _row(entry["row"], entry["samples"], size["vocab_size"])
        self._num = entry["micro_batches"]
        super().__init__([[row] * self._num], entry["parts"], size, device)
        ((row, *_),) = self.steps
        stages = [
            PipelineStage(_Part(decoder, row, part, self.num_parts), part, self.num_parts, device.device)
            for part, decoder in self.parts.items()
        ]

        def loss(out: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
            return _loss(out, row)

        self._schedule = (
            Schedule1F1B(stages[0], self._num, loss, scale_grads=False) if len(stages) == 1
            else ScheduleInterleaved1F1B(stages, self._num, loss, scale_grads=False)
        )  # fmt: skip

    def run(self, step: int) -> None:
        """As the class says."""
        ids = self.steps[0][0]["input_ids"].expand(self._num, -1)
        given = (ids,) if 0 in self.parts else ()
        target = ids if self.num_parts - 1 in self.parts else None
        self._schedule.step(*given, target=target, return_outputs=False)


class PlannedRows(Pipeline):
    """The steps of a packed set, whose rows are of unlike lengths, as `examples/pipeline_stages.py` runs them."""

    def __init__(self, entry: Mapping[str, Any], size: Mapping[str, int], device: Device) -> None:
        dataset = PackedDataset(entry["folder"], dist.get_rank(), dist.get_world_size(), lockstep=False)
        super().__init__([dataset[i] for i in range(len(dataset))], 1, size, device)

    def run(self, step: int) -> None:
        """As the class says."""
        (decoder,) = self.parts.values()
        run_pipeline(decoder, self.steps[step], dist.get_rank() - 1, dist.get_rank() + 1)


class _Part(nn.Module):
    """A part as torch's schedules call it; they hand a micro-batch's tensors along, and not what describes its row."""

    def __init__(self, decoder: Decoder, row: Batch, part: int, num_parts: int) -> None:
        super().__init__()
        self.decoder = decoder
        self._row, self._part, self._num_parts = row, part, num_parts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        row = self._row if self._part else {**self._row, "input_ids": x}
        return self.decoder(x if self._part else None, row, self._part, self._num_parts)


def _open(entry: Mapping[str, Any], job: Mapping[str, Any], device: Device) -> Pipeline:
    return (PlannedRows if "folder" in entry else EqualRows)(entry, job["size"], device)


def _loss(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    return batch_losses(logits, batch).sum()


def _row(length: int, num_samples: int, vocabulary_size: int) -> Batch:
    samples = split_evenly(length, num_samples)
    ids = (torch.arange(length) * 7919 % vocabulary_size)[None]
    return {
        "input_ids": ids,
        "labels": ids,
        "position_ids": torch.cat([torch.arange(size) for size in samples])[None],
        "cu_seq_lens_q": torch.tensor([0, *np.cumsum(samples)], dtype=torch.int32),
    }


def _moved(batch: Mapping[str, Any], device: torch.device) -> Batch:
    """On the device, but for the borders, which `packed_attention` reads."""
    return {
        key: value.to(device) if isinstance(value, torch.Tensor) and key != "cu_seq_lens_q" else value
        for key, value in batch.items()
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
