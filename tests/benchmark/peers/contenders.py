"""The contenders: hbpack's algorithms, and the functions of other trainers."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import distribution
from types import ModuleType
from typing import Any

import numpy as np

OURS = "hbpack "
"""Prefix of hbpack's own."""
BATCH = 1000
"""Samples that TRL, LLaMA-Factory and ms-swift pack at a time: the batches of `datasets.map`."""

Lengths = np.ndarray
Packs = tuple[np.ndarray, np.ndarray]
"""(samples of each pack, members one pack after the other)"""


@dataclass(frozen=True, kw_only=True)
class Packer:
    """A contender that is ready to run."""

    pack: Callable[[Any, int], Any]
    """(input, capacity) -> result; what is timed."""
    prepare: Callable[[Lengths], Any]
    """Lengths as the packer takes them; made anew for each call."""
    packs: Callable[[Any], Packs]
    """The result as packs."""
    gives_lengths: bool = False
    """Whether members are lengths, where the packer gives no sample ids."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A peer's function."""

    load: Callable[[], Packer]
    distribution: str
    """Whose version is shown."""
    install: str = ""
    """How to get it; empty: `make bench` installs it."""


def names(algorithms: Sequence[str]) -> list[str]:
    """All contenders; hbpack's are the given algorithms."""
    return [OURS + name for name in algorithms] + list(PEERS)


def load(name: str) -> tuple[Packer, str]:
    """The packer and its version. Raises ImportError if it is not installed."""
    if name.startswith(OURS):
        return _hbpack(name.removeprefix(OURS)), ""
    peer = PEERS[name]
    return peer.load(), f"{peer.distribution} {distribution(peer.distribution).version}"


def _hbpack(name: str) -> Packer:
    from packer_cli.plan.packing import REGISTRY

    algorithm = REGISTRY[name]
    options = algorithm.options()
    return Packer(
        prepare=lambda lengths: lengths,
        pack=lambda lengths, capacity: algorithm.pack(lengths, capacity, 0, options),
        packs=lambda result: (np.diff(result[0]), result[1]),
    )


def _trl(batch: int | None) -> Packer:
    """TRL moves the tokens while it packs. Here they are nulls, which take no memory, to time only its packing."""
    import pyarrow as pa
    from trl.data_utils import _pack_bfd

    def prepare(lengths: Lengths) -> Any:
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        column = pa.LargeListArray.from_arrays(pa.array(offsets), pa.nulls(int(offsets[-1])))
        return pa.table({"input_ids": column})

    def pack(samples: Any, capacity: int) -> list[Any]:
        size = batch or len(samples)
        return [_pack_bfd(samples.slice(first, size), capacity) for first in range(0, len(samples), size)]

    def packs(parts: list[Any]) -> Packs:
        return _flat([pack for part in parts for pack in part["seq_lengths"].to_pylist()])

    return Packer(prepare=prepare, pack=pack, packs=packs, gives_lengths=True)


def _axolotl(bin_size: int | None) -> Packer:
    from axolotl.utils.samplers.multipack import pack_parallel

    return Packer(
        prepare=lambda lengths: lengths,
        pack=lambda lengths, capacity: pack_parallel(lengths, capacity, 100_000, bin_size or capacity, 1),
        packs=_flat,
    )


def _axolotl_sequential() -> Packer:
    from axolotl.utils.samplers.multipack import allocate_sequentially

    return Packer(
        prepare=lambda lengths: lengths,
        pack=lambda lengths, capacity: allocate_sequentially(lengths, 0, capacity, 1)[0],
        packs=_flat,
    )


def _llamafactory(batch: int | None) -> Packer:
    module = _module_alone("llamafactory", "llamafactory/data/processor/processor_utils.py")

    def pack(lengths: list[int], capacity: int) -> list[list[int]]:
        if batch is None:
            return module.greedy_knapsack(lengths, capacity)
        batches = (lengths[first : first + batch] for first in range(0, len(lengths), batch))
        return [pack for part in batches for pack in module.greedy_knapsack(part, capacity)]

    return Packer(prepare=np.ndarray.tolist, pack=pack, packs=_flat, gives_lengths=True)


def _ms_swift() -> Packer:
    from swift.dataset.packing import PackingDataset

    class Collector:
        """Replaces the queue to the process that waits for the packs."""

        def __init__(self) -> None:
            self.packs: list[list[tuple[int, int]]] = []

        def put(self, message: tuple[int, list[list[tuple[int, int]]], int]) -> None:
            self.packs += message[1]

    def pack(lengths: list[int], capacity: int) -> list[list[tuple[int, int]]]:
        collector = Collector()
        PackingDataset.create_packed_idx(0, 0, lengths, collector, capacity, "binpack")
        return collector.packs

    return Packer(
        prepare=np.ndarray.tolist,
        pack=pack,
        packs=lambda packs: _flat([[sample for sample, _ in pack] for pack in packs]),
    )


def _binpacking() -> Packer:
    import binpacking

    return Packer(
        prepare=lambda lengths: dict(enumerate(lengths.tolist())),
        pack=binpacking.to_constant_volume,
        packs=lambda packs: _flat([list(pack) for pack in packs]),
    )


def _prtpy() -> Packer:
    from prtpy import pack
    from prtpy.packing.first_fit import decreasing

    return Packer(
        prepare=np.ndarray.tolist,
        pack=lambda lengths, capacity: pack(algorithm=decreasing, binsize=capacity, items=lengths),
        packs=_flat,
        gives_lengths=True,
    )


def _seqpacker() -> Packer:
    from seqpacker import pack_sequences

    return Packer(
        prepare=np.ndarray.tolist,
        pack=lambda lengths, capacity: pack_sequences(lengths, capacity=capacity),
        packs=lambda result: _flat(result.bins),
    )


def _flat(packs: Sequence[Sequence[int]]) -> Packs:
    sizes = np.fromiter((len(pack) for pack in packs), dtype=np.int64)
    return sizes, np.fromiter(itertools.chain.from_iterable(packs), dtype=np.int64)


def _module_alone(package: str, path: str) -> ModuleType:
    """Import one file of an installed package, without the package's own imports. Raises ImportError."""
    files = [file for file in distribution(package).files or () if str(file) == path]
    if not files:
        raise ModuleNotFoundError(f"{package} has no {path}")
    spec = importlib.util.spec_from_file_location("packing_of_a_peer", files[0].locate())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


_NO_DEPS = "pip install --no-deps {}"
_SWIFT = f"{_NO_DEPS.format('ms-swift')} && pip install binpacking pillow modelscope peft json_repair aiohttp"

PEERS: dict[str, Contender] = {
    "TRL, as shipped": Contender(load=lambda: _trl(BATCH), distribution="trl"),
    "TRL, all at once": Contender(load=lambda: _trl(None), distribution="trl"),
    "Axolotl multipack, default": Contender(
        load=lambda: _axolotl(200), distribution="axolotl", install=_NO_DEPS.format("axolotl")
    ),
    "Axolotl, bin_size = capacity": Contender(
        load=lambda: _axolotl(None), distribution="axolotl", install=_NO_DEPS.format("axolotl")
    ),
    "Axolotl, sequential": Contender(
        load=_axolotl_sequential, distribution="axolotl", install=_NO_DEPS.format("axolotl")
    ),
    "LLaMA-Factory, as shipped": Contender(
        load=lambda: _llamafactory(BATCH), distribution="llamafactory", install=_NO_DEPS.format("llamafactory")
    ),
    "LLaMA-Factory, all at once": Contender(
        load=lambda: _llamafactory(None), distribution="llamafactory", install=_NO_DEPS.format("llamafactory")
    ),
    "ms-swift, as shipped": Contender(load=_ms_swift, distribution="ms-swift", install=_SWIFT),
    "binpacking": Contender(load=_binpacking, distribution="binpacking"),
    "prtpy, first fit decreasing": Contender(load=_prtpy, distribution="prtpy"),
    "seqpacker": Contender(load=_seqpacker, distribution="seqpacker", install="pip install seqpacker"),
}
