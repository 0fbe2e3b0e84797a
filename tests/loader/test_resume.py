"""Under DataLoader and StatefulDataLoader: the same batches, and resuming gives exactly the rest."""

from __future__ import annotations

import json
import pickle
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from packer_cli.errors import FormatError
from packer_cli.loader import PackedDataset


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(
        torch.equal(a[k], b[k]) if isinstance(a[k], torch.Tensor) else a[k] == b[k] for k in a
    )


def assert_same(got: Any, expected: list[dict[str, Any]]) -> None:
    got = list(got)
    assert [(b["epoch"], b["iteration"]) for b in got] == [(b["epoch"], b["iteration"]) for b in expected]
    assert all(same(a, b) for a, b in zip(got, expected, strict=True))


def open_set(packed: Any, **kwargs: Any) -> PackedDataset:
    return PackedDataset(packed.path, 2, 4, **kwargs)


@pytest.fixture(scope="module")
def epochs(packed: Any) -> list[list[dict[str, Any]]]:
    """The batches of epochs 0 to 3."""
    return [[ds[i] for i in range(len(ds))] for ds in (open_set(packed, epoch=e) for e in range(4))]


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader_gives_the_batches_of_each_epoch(packed: Any, epochs: Any, workers: int) -> None:
    ds = open_set(packed)
    ds[3]  # files are open before the fork
    loader = DataLoader(ds, batch_size=None, num_workers=workers)
    for epoch in (0, 1, 3):
        ds.set_epoch(epoch)
        batches = list(loader)
        assert_same(batches, epochs[epoch])
        assert type(batches[0]["max_length_q"]) is type(batches[0]["step"]) is int


def test_set_epoch_reaches_persistent_spawned_workers(packed: Any, epochs: Any) -> None:
    ds = open_set(packed)
    loader = DataLoader(ds, batch_size=None, num_workers=1, persistent_workers=True, multiprocessing_context="spawn")
    for epoch in (0, 1):
        ds.set_epoch(epoch)
        assert_same(loader, epochs[epoch])


def test_pickles_with_its_position(packed: Any, epochs: Any) -> None:
    ds = open_set(packed, epoch=1)
    list(islice(ds, 5))
    copy = pickle.loads(pickle.dumps(ds))
    assert len(pickle.dumps(ds)) < 20_000
    ds.set_epoch(2)
    assert (copy.epoch, copy.position, copy.state_dict()["iteration"]) == (1, 5, 5)
    assert_same(copy, epochs[1][5:])


def test_iteration_moves_the_position_and_access_does_not(packed: Any, epochs: Any) -> None:
    ds = open_set(packed)
    ds[7]
    assert ds.position == 0
    assert ds.state_dict()["iteration"] == 8
    assert_same(islice(ds, 3), epochs[0][:3])
    assert ds.position == 3
    assert_same(ds, epochs[0][3:])
    assert ds.position == len(ds)
    assert_same(ds, epochs[0])
    assert_same(ds.iter_from(len(ds) - 2), epochs[0][-2:])
    assert_same(ds.iter_from(len(ds)), [])
    ds.set_epoch(0)
    assert ds.position == len(ds)
    ds.set_epoch(1)
    assert ds.position == 0
    assert same(ds[-1], epochs[1][-1])


def test_set_epoch_ends_an_iteration(packed: Any) -> None:
    ds = open_set(packed)
    it = iter(ds)
    next(it)
    ds.set_epoch(1)
    with pytest.raises(RuntimeError, match=r"^epoch 1 was set while iterating over epoch 0: iterate again$"):
        next(it)


def test_the_state_is_small_and_fits_every_rank(packed: Any) -> None:
    states = []
    for rank in range(4):
        ds = PackedDataset(packed.path, rank, 4)
        for batch in islice(ds, 9):
            state = ds.state_dict()
            assert state == ds.state_dict(batch["iteration"] + 1)
        states.append(state)
    assert states == [states[0]] * 4
    assert states[0] == {
        "version": 3,
        "fingerprint": "fp-0",
        "planned_fingerprint": "fp-0",
        "epoch": 0,
        "iteration": 9,
        "step": packed.epochs[0][9][0],
    }
    assert json.loads(json.dumps(states[0])) == states[0]


@pytest.mark.parametrize("epoch", [0, 1, 3])
@pytest.mark.parametrize("done", [0, 1, 10])
def test_own_state_resumes_iteration_and_a_plain_loader(packed: Any, epochs: Any, epoch: int, done: int) -> None:
    state = open_set(packed, epoch=epoch).state_dict(done)
    ds = open_set(packed)
    ds.load_state_dict(state)
    assert ds.state_dict() == state
    assert_same(DataLoader(ds, batch_size=None, sampler=ds.remaining()), epochs[epoch][done:])
    ds = open_set(packed)
    ds.load_state_dict(state)
    assert_same(ds, epochs[epoch][done:])


def test_a_plain_loader_with_workers_resumes(packed: Any, epochs: Any) -> None:
    ds = open_set(packed)
    for batch in islice(DataLoader(ds, batch_size=None, num_workers=2), 11):
        state = ds.state_dict(batch["iteration"] + 1)
    ds = open_set(packed)
    ds.load_state_dict(state)
    assert_same(DataLoader(ds, batch_size=None, num_workers=2, sampler=ds.remaining()), epochs[0][11:])


def test_the_state_of_a_finished_epoch_begins_the_next(packed: Any, epochs: Any) -> None:
    ds = open_set(packed)
    list(ds)
    state = ds.state_dict()
    assert state["iteration"] == len(epochs[0])
    assert state["step"] == ds.num_steps
    ds = open_set(packed)
    ds.load_state_dict(state)
    assert_same(ds, epochs[1])


def test_states_that_do_not_fit(packed: Any) -> None:
    ds = open_set(packed)
    good = ds.state_dict(3)
    n = len(ds)

    def message(**changes: Any) -> str:
        with pytest.raises(FormatError) as error:
            ds.load_state_dict(good | changes)
        return str(error.value)

    assert message(fingerprint="fp-9") == (
        f"the loader state belongs to the packed set fp-9, but {str(packed.path)!r} is fp-0: "
        "resume with the set with which the run began, or start over"
    )
    for key in ("fingerprint", "planned_fingerprint", "epoch", "iteration", "step"):
        for wrong in ([], {"a": 1}, None, 1.5, True):
            assert message(**{key: wrong}) == (f"the loader state has no valid {key}; it was changed, use another one")
    for none in ({}, [], None, "state"):
        with pytest.raises(
            FormatError,
            match=r"^the loader state is not what state_dict\(\) of a PackedDataset gives; save that",
        ):
            ds.load_state_dict(none)
    assert message(version=1) == (
        "the loader state has version 1; this release reads version 3; resume with the release that saved it, or "
        "start from the first step of a set that you pack again"
    )
    assert message(epoch=2**31) == (
        "the loader state is of epoch 2147483648, and the last is 2147483647; it was changed, use another one"
    )
    assert message(iteration=n + 1) == (
        f"the loader state is at iteration {n + 1} of epoch 0, which has {n}: "
        "it was changed, or is of another packed set"
    )
    assert ds.position == 0


@given(epoch=st.integers(0, 4), share=st.floats(0, 1), rank=st.integers(0, 3))
def test_a_run_stopped_anywhere_goes_on_with_what_is_left(packed: Any, epoch: int, share: float, rank: int) -> None:
    """The state of one rank, taken at any iteration, on any rank."""
    whole = PackedDataset(packed.path, rank, 4, epoch=epoch)
    expected = [(b["epoch"], b["iteration"], b["step"], b["pack_id"]) for b in whole]
    stop = round(share * len(whole))
    other = PackedDataset(packed.path, 3 - rank, 4, epoch=epoch)
    for _ in islice(other, stop):
        pass
    state = json.loads(json.dumps(other.state_dict()))
    assert len(json.dumps(state)) < 200
    ds = PackedDataset(packed.path, rank, 4)
    ds.load_state_dict(state)
    if stop == len(whole):
        assert (ds.epoch, ds.position) == (epoch + 1, 0)
    else:
        assert [(b["epoch"], b["iteration"], b["step"], b["pack_id"]) for b in ds] == expected[stop:]


@pytest.mark.parametrize(("before", "after", "stop"), [(0, 3, 5), (3, 0, 12), (1, 2, 1), (2, 1, 29)])
@pytest.mark.parametrize("stateful", [False, True])
def test_resuming_with_another_number_of_workers(
    packed: Any, epochs: Any, before: int, after: int, stop: int, stateful: bool
) -> None:
    """The data set's own state knows nothing of workers, under either loader."""
    make: Any = StatefulDataLoader if stateful else DataLoader
    ds = open_set(packed)
    got = []
    for batch in islice(make(ds, batch_size=None, num_workers=before), stop):
        got.append(batch)
        state = ds.state_dict(batch["iteration"] + 1)
    ds = open_set(packed)
    ds.load_state_dict(state)
    got += list(make(ds, batch_size=None, num_workers=after, sampler=ds.remaining()))
    ds.set_epoch(1)
    got += list(make(ds, batch_size=None, num_workers=after))
    assert_same(got, epochs[0] + epochs[1])
