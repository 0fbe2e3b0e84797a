"""WLB-LLM's context-parallel sharding (arXiv 2503.17924, figure 15): per sequence, per document, or the faster one."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packer_cli.cost.shape import ModelShape
from packer_cli.format.sharding import PLANNED, local_indices
from packer_cli.measure.device import Device
from packer_cli.measure.kernels import measure_attention, piece_seconds, sdpa
from packer_cli.plan.build import build_plan
from packer_cli.plan.core.attention_rates import AttentionRates, tile_work
from packer_cli.plan.core.cp_sharding import cp_imbalance, predict_seconds
from packer_cli.plan.core.cut import make_pieces
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.segments import attention_segments
from packer_cli.plan.core.types import Int32Array, Int64Array, Plan
from tests.benchmark.frontier import shared_lengths
from tests.benchmark.paper_times import LLAMA_8B, model_of
from tests.benchmark.report import seconds, table
from tests.naive.sharding import runs
from tests.requests import request

CP = 4
WINDOWS = (65_536, 131_072)
PACKINGS = {"wrap": "in order, cut at the window", "bfs": "best fit"}
RHOS = (1.0, 0.5)
PAPER = {65_536: 1.01, 131_072: 1.07}
"""Speed-up of per document over per sequence, of a layer."""
_NUM_DOCUMENTS = 200_000
_WINDOW = 8192
_NUM_MEASURED = 10
_SMALL = ModelShape(
    num_layers=1, hidden_size=256, num_heads=4, num_kv_heads=4, head_dim=64, ffn_size=512, vocabulary_size=256,
    dtype="float32",
)  # fmt: skip
_LAYER = model_of(LLAMA_8B).cost
"""An 8B model's: attention's seconds a squared token, and those of all else a token."""


def web_mix(window: int, num_documents: int) -> Int32Array:
    """int32[n]: lognormal lengths up to the window, with about 80 % of the tokens in documents under half of it."""
    generator = np.random.default_rng(0)
    lengths = generator.lognormal(np.log(window / 160), 1.8, num_documents)
    return np.clip(lengths, 1, window).astype(np.int32)


def run(work: Path, num_runs: int) -> str:
    """Measure, and return the text of the section."""
    about = (
        f"CP degree {CP}, packs of one group. Attention's time is predicted piece by piece: a kernel in tiles of 128 "
        "queries, on the slowest rank. *rho* is the rate for pieces of fewer than 256 queries over that for longer "
        f"ones; pairs of numbers are for {' and '.join(f'{rho:g}' for rho in RHOS)}. A *layer* adds everything else "
        "of a layer of an 8B model on H100s, which all ranks share evenly. *Published* deals out the tokens that "
        "samples leave over one by one. The paper measured a layer of a 7B model: per document 1.01x (64K) and "
        "1.07x (128K) over per sequence, and the choice 7.5 % over per sequence and 3.4 % over per document. The web "
        "mix is lognormal, with 80 % of the tokens in documents under half the window."
    )
    even = "**How even**: attention work of the busiest rank over the mean, less 1: mean over packs, and greatest."
    indices = (
        "**Speed of the indices** of one rank's part of a row of 128K, compared with `np.arange` of as many and "
        "`take` of as many token ids (CPU time, median)."
    )
    choice = "**Speed of the choice** (CPU time, after compilation)."
    measured = (
        f"**Predicted and measured**, on this machine's CPU: {_NUM_MEASURED} packs of {_WINDOW} tokens of the web "
        "mix, and as many of samples of 16 to 300 tokens. The pieces of each rank run forward and backward (torch's "
        "SDPA in tiles of 128 queries, 4 heads of 64, CPU time of one thread); a sharding takes as long as its "
        "slowest rank. The times of single pieces are those that `hbpack profile` measures."
    )
    texts = (
        *(about, _speed_ups(), even, _evenness(), measured, _measured()),
        *(indices, _indices(max(num_runs, 5)), choice, _choice()),
    )
    return "\n\n".join(texts)


def _mixes(window: int) -> Iterator[tuple[str, Int32Array]]:
    yield "shared corpora", shared_lengths()[0]
    yield "web mix", web_mix(window, _NUM_DOCUMENTS)


def _plan(lengths: Int32Array, window: int, packing: str) -> Plan:
    order = np.random.default_rng(1).permutation(len(lengths))
    pieces = make_pieces(lengths[order], np.arange(len(lengths)), window, "split")
    return build_plan(pieces, request((Group(capacity=window),), 1, packing))


def _cases() -> Iterator[tuple[int, list[str], Plan]]:
    for window in WINDOWS:
        for name, lengths in _mixes(window):
            for packing, how in PACKINGS.items():
                print(f"cp-sharding: {name}, {window}, {packing}", file=sys.stderr)
                yield window, [f"{name}, {window // 1024}K, {how}"], _plan(lengths, window, packing)


def _speed_ups() -> str:
    rows = []
    for window, label, plan in _cases():
        lengths, offsets = attention_segments(plan)
        cells: list[list[str]] = []
        for rho in RHOS:
            rates = AttentionRates.assumed(rho)
            cp_sizes = np.full(len(offsets) - 1, CP)
            attention = predict_seconds(lengths, offsets, cp_sizes, rates) * 2 * _LAYER.quadratic
            published = _published_seconds(lengths, offsets, rates) * 2 * _LAYER.quadratic
            tokens = np.add.reduceat(lengths, offsets[:-1], dtype=np.int64)
            layer = attention + (_LAYER.linear * tokens / CP)[:, None]
            chosen = attention.min(axis=1)
            per_document = float((attention[:, 1] < attention[:, 0]).mean())
            cells.append(
                [
                    f"{attention[:, 0].sum() / published.sum():.2f}",
                    f"{attention[:, 0].sum() / attention[:, 1].sum():.2f}",
                    f"{layer[:, 0].sum() / layer[:, 1].sum():.2f}",
                    f"{100 * (layer[:, 0].sum() / layer.min(axis=1).sum() - 1):.1f} %",
                    f"{100 * (attention[:, 1].sum() / chosen.sum() - 1):.1f} %",
                    f"{100 * (published.sum() / np.minimum(attention[:, 0], published).sum() - 1):.1f} %",
                    f"{100 * per_document:.0f} %",
                ]
            )
        both = [" / ".join(pair) for pair in zip(*cells, strict=True)]
        rows.append([*label, f"{len(offsets) - 1:,}", *both, f"{PAPER[window]:.2f}"])
    header = [
        "packs of", "packs", "published per document over per sequence", "per document over per sequence",
        "the same, of a layer", "choice over per sequence, of a layer", "choice over per document",
        "the same, as published", "packs per document",
        "paper, of a layer",
    ]  # fmt: skip
    return table(header, rows)


def _published_seconds(lengths: Int32Array, offsets: Int64Array, rates: AttentionRates) -> NDArray[np.float64]:
    """Time of the slowest rank of each pack where what samples leave over is dealt token by token, round-robin."""
    length = lengths.astype(np.int64)
    chunk = length // (2 * CP)
    rest = length - 2 * CP * chunk
    pack = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    time_of = np.zeros((len(offsets) - 1, CP))
    for k in range(2 * CP):
        np.add.at(time_of, (pack, min(k, 2 * CP - 1 - k)), _piece_seconds(chunk, (k + 1) * chunk, rates))
    place = np.arange(rest.sum()) - np.repeat(np.cumsum(rest) - rest, rest) + np.repeat(2 * CP * chunk, rest)
    of_token = np.repeat(pack, rest)
    first = np.searchsorted(of_token, np.arange(len(offsets) - 1))
    turn = np.arange(len(of_token)) - first[of_token]
    np.add.at(time_of, (of_token, turn % CP), _piece_seconds(np.ones_like(place), place + 1, rates))
    return time_of.max(axis=1)


def _piece_seconds(queries: Int64Array, keys: Int64Array, rates: AttentionRates) -> NDArray[np.float64]:
    return tile_work(queries, keys) / np.where(queries < rates.queries[-1], *rates.rates[0])


def _evenness() -> str:
    rows = []
    for _, label, plan in _cases():
        row = []
        for cp in (4, 16):
            group = replace(plan.groups[0], cp_size=cp)
            for code in (0, 1):
                codes = np.full(len(plan.packs), code, dtype=np.int8)
                shared = replace(plan, groups=(group,), packs=replace(plan.packs, cp_sharding=codes))
                over = 100 * (cp_imbalance(shared) - 1)
                row.append(f"{over.mean():.3f} %, {over.max():.2f} %")
        rows.append(label + row)
    header = ["packs of", *(f"CP {cp}, per {name}" for cp in (4, 16) for name in ("sequence", "document"))]
    return table(header, rows)


def _measured() -> str:
    device = Device("cpu")
    generator = np.random.default_rng(0)
    shapes = {
        "web mix": [_cut(web_mix(_WINDOW, 1000 * _NUM_MEASURED)[1000 * i :], _WINDOW) for i in range(_NUM_MEASURED)],
        "short samples": [_cut(generator.integers(16, 300, 1000), _WINDOW) for _ in range(_NUM_MEASURED)],
    }
    with device.one_thread():
        pieces = measure_attention(device, sdpa, _SMALL, _WINDOW, 3)
        rates = AttentionRates.measured([(row.queries, row.keys, row.seconds) for row in pieces])
        times = {}
        for name, packs in shapes.items():
            print(f"cp-sharding: measuring {name}", file=sys.stderr)
            offsets = np.cumsum([0, *map(len, packs)])
            predicted = predict_seconds(np.concatenate(packs), offsets, np.full(len(packs), CP), rates)
            found = np.array([[_run_seconds(device, pack.tolist(), name) for name in PLANNED] for pack in packs])
            times[name] = predicted, found
    predicted, found = (np.concatenate(parts) for parts in zip(*times.values(), strict=True))
    times["both"] = predicted, found
    rows = []
    for name, (predicted, found) in times.items():
        codes = predicted.argmin(axis=1)
        chosen = found[np.arange(len(found)), codes].sum()
        rows.append(
            [
                name,
                f"{predicted[:, 0].sum() / predicted[:, 1].sum():.2f}",
                f"{found[:, 0].sum() / found[:, 1].sum():.2f}",
                f"{100 * np.abs(predicted / found - 1).mean():.0f} %",
                f"{(codes == found.argmin(axis=1)).sum()} of {len(found)}",
                f"{100 * (found[:, 0].sum() / chosen - 1):.1f} %",
                f"{100 * (found[:, 1].sum() / chosen - 1):.1f} %",
                f"{100 * (chosen / found.min(axis=1).sum() - 1):.1f} %",
            ]
        )
    header = [
        "packs of", "per document over per sequence, predicted", "measured", "error of a time", "faster one chosen",
        "choice over per sequence", "over per document", "best over the choice",
    ]  # fmt: skip
    return table(header, rows)


def _cut(lengths: Int32Array, window: int) -> Int32Array:
    """The first samples, cut at the window."""
    ends = np.minimum(np.cumsum(lengths), window)
    return np.diff(ends[: int(np.argmax(ends == window)) + 1], prepend=0).astype(np.int32)


def _run_seconds(device: Device, lengths: list[int], sharding: str) -> float:
    """CPU seconds of attention on the slowest rank."""
    slowest = 0.0
    pieces = runs(lengths, CP, sharding)
    for rank in range(CP):
        own = [(stop - start, stop - first) for of, start, stop, first in pieces if of == rank]
        queries, keys = zip(*own, strict=True)
        slowest = max(slowest, piece_seconds(device, sdpa, _SMALL, queries, keys, 3))
    return slowest


def _indices(repeats: int) -> str:
    rows = []
    for typical in (300, 3000, 30_000):
        generator = np.random.default_rng(0)
        lengths = generator.lognormal(np.log(typical), 1.0, 4096).astype(np.int64) + 1
        lengths = lengths[np.cumsum(lengths) <= 131_072]
        borders = np.cumsum([0, *lengths, 131_072 - lengths.sum()])
        ids = np.arange(131_072, dtype=np.uint16)
        for cp in (4, 16):
            part = local_indices(borders, cp, 1, "document")
            of_document, of_sequence, arange, take = _medians(
                [
                    lambda borders=borders, cp=cp: local_indices(borders, cp, 1, "document"),
                    lambda borders=borders, cp=cp: local_indices(borders, cp, 1, "zigzag"),
                    lambda part=part: np.arange(len(part)),
                    lambda part=part, ids=ids: ids[part],
                ],
                20 * repeats,
            )
            rows.append(
                [
                    f"{len(borders) - 1}",
                    f"{cp}",
                    f"{seconds(of_document)}",
                    f"{len(part) / of_document / 1e6:,.0f} M/s",
                    seconds(of_sequence),
                    seconds(arange),
                    seconds(take),
                ]
            )
    return table(["samples", "CP", "per document", "indices", "per sequence", "`arange`", "`take`"], rows)


def _medians(calls: list[Callable[[], object]], repeats: int) -> list[float]:
    """CPU seconds of each call, which take turns."""
    times = np.empty((repeats, len(calls)))
    for row in times:
        for i, call in enumerate(calls):
            begin = time.process_time()
            for _ in range(5):
                call()
            row[i] = (time.process_time() - begin) / 5
    return np.median(times, axis=0).tolist()


def _choice() -> str:
    rows = []
    for num_packs in (100_000, 1_000_000):
        lengths = np.tile(web_mix(131_072, 100_000), num_packs // 10_000)
        offsets = np.arange(num_packs + 1) * 10
        begin = time.process_time()
        predict_seconds(lengths, offsets, np.full(num_packs, CP), AttentionRates.assumed())
        rows.append([f"{num_packs:,}", f"{len(lengths):,}", seconds(time.process_time() - begin)])
    return table(["packs", "samples", "time"], rows)
