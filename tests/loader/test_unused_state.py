"""A loaded state that a loader does not use: the iterations before it are an error, and nothing else is."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, Sampler, Subset
from torchdata.stateful_dataloader import StatefulDataLoader

from packer_cli.loader import PackedDataset

DONE = 7
CONTEXTS = [None, "fork", *(pytest.param(name, marks=pytest.mark.slow) for name in ("spawn", "forkserver"))]
"""How workers start; the slow ones import torch again."""


@pytest.fixture
def no_worker_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Workers end when their loader is collected; a traceback keeps it. One that failed is waited for, and killed."""
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)
    yield
    gc.collect(1)


@pytest.fixture
def resumed(packed: Any) -> PackedDataset:
    """A state of iteration 7 of epoch 1 was loaded."""
    ds = PackedDataset(packed.path, 2, 4)
    ds.load_state_dict(PackedDataset(packed.path, 2, 4, epoch=1).state_dict(DONE))
    return ds


def iterations(batches: Any) -> list[tuple[int, int]]:
    return [(batch["epoch"], batch["iteration"]) for batch in batches]


def rest(ds: PackedDataset, epoch: int = 1, begin: int = DONE) -> list[tuple[int, int]]:
    return [(epoch, i) for i in range(begin, len(ds))]


MESSAGE = r"iteration \d+ is asked for, and the loaded state goes on at 7: give DataLoader sampler=ds.remaining\(\) or"


@pytest.mark.usefixtures("no_worker_left")
@pytest.mark.parametrize("context", CONTEXTS)
def test_a_plain_loader_is_told(resumed: PackedDataset, context: str | None) -> None:
    """With one worker: torch kills another that still starts, and says so when the loader is collected."""
    options = {} if context is None else {"num_workers": 1, "multiprocessing_context": context}
    with pytest.raises(RuntimeError, match=MESSAGE):
        next(iter(DataLoader(resumed, batch_size=None, **options)))


@pytest.mark.parametrize(
    "loader",
    [
        lambda ds: DataLoader(ds, batch_size=None, shuffle=True),
        lambda ds: DataLoader(ds, batch_size=None, sampler=RandomSampler(ds)),
        lambda ds: DataLoader(ds, batch_size=None, sampler=DistributedSampler(ds, 4, 2, shuffle=False)),
        lambda ds: DataLoader(Subset(ds, range(len(ds))), batch_size=None),
        lambda ds: StatefulDataLoader(ds, batch_size=None),
        lambda ds: DataLoader(pickle.loads(pickle.dumps(ds)), batch_size=None),
        lambda ds: (ds[i] for i in range(len(ds))),
    ],
    ids=["shuffle", "random", "distributed", "subset", "stateful", "pickled", "by hand"],
)
def test_whatever_passes_by_the_state_is_told(resumed: PackedDataset, loader: Any) -> None:
    with pytest.raises(RuntimeError, match=MESSAGE):
        list(loader(resumed))


def test_a_loader_of_accelerate_is_told(resumed: PackedDataset) -> None:
    accelerate = pytest.importorskip("accelerate")
    loader = accelerate.Accelerator(cpu=True).prepare(DataLoader(resumed, batch_size=None))
    resumed.set_epoch(1)  # The one of the state, as such a loader does by itself.
    loader.iteration = 1
    with pytest.raises(RuntimeError, match=MESSAGE):
        next(iter(loader))


@pytest.mark.parametrize("context", CONTEXTS)
def test_the_rest_comes_and_then_whole_epochs(resumed: PackedDataset, context: str | None) -> None:
    options = {} if context is None else {"num_workers": 2, "multiprocessing_context": context}
    assert iterations(DataLoader(resumed, batch_size=None, sampler=resumed.remaining(), **options)) == rest(resumed)
    loader = DataLoader(resumed, batch_size=None, persistent_workers=context is not None, **options)
    for epoch in (2, 3):
        resumed.set_epoch(epoch)
        assert iterations(loader) == rest(resumed, epoch, 0)


def test_the_position_counts_whoever_asks_for_it(resumed: PackedDataset) -> None:
    class Lazy(Sampler[int]):
        """Workers have started when it is first read."""

        def __iter__(self) -> Iterator[int]:
            yield from resumed.remaining()

    loader = DataLoader(resumed, batch_size=None, sampler=Lazy(), num_workers=2, persistent_workers=True)
    assert iterations(loader) == rest(resumed)
    resumed.set_epoch(2)
    assert iterations(loader) == rest(resumed, 2, 0)


def test_a_range_of_the_user_goes_on(resumed: PackedDataset) -> None:
    assert iterations([resumed[i] for i in range(resumed.position, len(resumed))]) == rest(resumed)
    assert resumed[-1]["iteration"] == len(resumed) - 1
    assert iterations(DataLoader(Subset(resumed, range(DONE, len(resumed))), batch_size=None)) == rest(resumed)


@pytest.mark.parametrize(
    "goes_on",
    [
        lambda ds: ds.remaining(),
        lambda ds: ds.sampler(),
        lambda ds: ds.iter_from(3),
        lambda ds: list(islice(ds, 2)),
        lambda ds: (ds.set_epoch(2), ds.set_epoch(1)),
    ],
    ids=["remaining", "sampler", "iter_from", "iterating", "set_epoch"],
)
def test_then_any_iteration_may_be_asked_for(resumed: PackedDataset, goes_on: Any) -> None:
    with pytest.raises(RuntimeError, match=MESSAGE):
        resumed[0]
    goes_on(resumed)
    assert resumed[0]["iteration"] == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_made_before_the_state_counts(packed: Any, workers: int) -> None:
    ds = PackedDataset(packed.path, 2, 4)
    loader = DataLoader(ds, batch_size=None, sampler=ds.sampler(), num_workers=workers)
    ds.load_state_dict(ds.state_dict(DONE))
    assert iterations(loader) == rest(ds, 0)
    assert iterations(loader) == rest(ds, 0, 0)


def test_states_with_nothing_before_them_allow_all(packed: Any) -> None:
    ds = PackedDataset(packed.path, 2, 4)
    for iteration in (0, len(ds)):
        ds.load_state_dict(PackedDataset(packed.path, 2, 4).state_dict(iteration))
        assert iterations(DataLoader(ds, batch_size=None)) == rest(ds, ds.epoch, 0)


def test_without_a_state_any_iteration_may_be_asked_for(packed: Any) -> None:
    ds = PackedDataset(packed.path, 2, 4)
    list(islice(ds, DONE))
    assert [ds[i]["iteration"] for i in (5, 2, 9, 0)] == [5, 2, 9, 0]
    assert sorted(iterations(DataLoader(ds, batch_size=None, shuffle=True))) == rest(ds, 0, 0)
