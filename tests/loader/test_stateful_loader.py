"""Under torchdata's StatefulDataLoader, by its own state: wherever it was saved, each epoch is read once and whole."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from traceback import clear_frames
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from packer_cli.errors import ConfigError, FormatError
from packer_cli.loader import PackedDataset
from tests.loader.packed_set import PackedSet, update_checksums, write_ranks, write_set

pytestmark = pytest.mark.filterwarnings("ignore:epoch . was over when the loader's state was saved")

WORKERS = [
    pytest.param({}, id="0"),
    pytest.param({"num_workers": 1}, id="1", marks=pytest.mark.slow),
    pytest.param({"num_workers": 2}, id="2", marks=pytest.mark.slow),
    pytest.param({"num_workers": 3}, id="3", marks=pytest.mark.slow),
    pytest.param({"num_workers": 2, "persistent_workers": True}, id="2-persistent"),
]


@pytest.fixture(scope="module")
def short_first(tmp_path_factory: pytest.TempPathFactory) -> PackedSet:
    """As after a rebalance in the middle of epoch 1: of that the last 3 iterations are left, of epoch 2 all are."""
    made = write_set(tmp_path_factory.mktemp("short"), [(16, 1, 14)], num_gpus=2)
    rest = made.epochs[0][-3:]
    made.epochs[0] = [(step - rest[0][0], slots) for step, slots in rest]
    entry = write_ranks(made, 0, "fp-0") | {"first_step": rest[0][0]}
    made.edit_manifest(epochs=[entry, write_ranks(made, 1, "fp-0")], first_epoch=1)
    update_checksums(made.path)
    assert len(made.epochs[0]) < len(made.epochs[1])
    return made


def open_set(made: PackedSet, **kwargs: Any) -> PackedDataset:
    return PackedDataset(made.path, 1, made.num_gpus, **kwargs)


def new_loader(ds: PackedDataset, **options: Any) -> StatefulDataLoader:
    return StatefulDataLoader(ds, batch_size=None, sampler=ds.sampler(), **options)


def refused(loader: StatefulDataLoader, kind: type[Exception]) -> str:
    """The message of the error with which a loader does not begin."""
    try:
        iter(loader)
    except kind as error:
        clear_frames(error.__traceback__)  # Until the garbage collector comes, they would keep its workers.
        return str(error)
    raise AssertionError


def state_after(loader: StatefulDataLoader, done: int) -> Any:
    """The state when so many batches of an epoch have been used; its workers end here."""
    it = iter(loader)
    for _ in range(done):
        next(it)
    return loader.state_dict()


def keys(batches: Any) -> list[tuple[int, int, int]]:
    return [(batch["epoch"], batch["iteration"], batch["pack_id"]) for batch in batches]


@pytest.fixture(scope="module")
def expected(short_first: PackedSet) -> dict[int, list[tuple[int, int, int]]]:
    """The batches of epochs 1 to 3."""
    return {epoch: keys(open_set(short_first, epoch=epoch)) for epoch in (1, 2, 3)}


def save_everywhere(loader: StatefulDataLoader, last: int) -> list[tuple[int, int, Any, bool]]:
    """(epoch, batches used, state, whether the loop had ended), in and after each loop up to epoch `last`."""
    states = []
    dataset: Any = loader.dataset
    for epoch in range(1, last + 1):
        dataset.set_epoch(epoch)
        done = 0
        for done, _ in enumerate(loader, 1):
            states.append((epoch, done, loader.state_dict(), False))
        states.append((epoch, done, loader.state_dict(), True))
    return states


@pytest.mark.parametrize(
    ("options", "every"),
    [
        pytest.param({}, 1, id="0"),
        pytest.param({"num_workers": 2}, 4, id="2", marks=pytest.mark.slow),
        pytest.param({"num_workers": 2, "persistent_workers": True}, 4, id="2-persistent"),
        *(pytest.param(*each.values, 1, id=f"{each.id}-all", marks=pytest.mark.slow) for each in WORKERS[1:]),
    ],
)
def test_a_state_saved_anywhere_goes_on_with_what_is_left(
    short_first: Any, expected: Any, options: Any, every: int
) -> None:
    """The loop begins at the saved epoch, or at the next one where it was over: the batches are the same."""
    states = save_everywhere(new_loader(open_set(short_first), **options), last=2)
    assert len(states) == len(expected[1]) + len(expected[2]) + 2
    ends = [len(expected[1]), len(states) - 1]  # After the loops.
    for number in sorted({*range(0, len(states), every), *ends}):
        epoch, done, state, _ = states[number]
        is_over = done == len(expected[epoch])
        for first in (epoch, epoch + 1) if is_over else (epoch,):
            ds = open_set(short_first)
            loader = new_loader(ds, **options)
            loader.load_state_dict(state)
            got = []
            for number in range(first, 4):
                ds.set_epoch(number)
                got.append(keys(loader))
            whole = [expected[number] for number in range(epoch + 1, 4)]
            rest = [expected[epoch][done:]] if first == epoch else []
            assert got == rest + whole, (epoch, done, first)


@pytest.mark.parametrize("options", [WORKERS[0], pytest.param(WORKERS[2], marks=pytest.mark.slow)])
def test_a_state_of_what_is_left_is_one_too(short_first: Any, expected: Any, options: Any) -> None:
    """Restored, saved again before, in and after the rest of the epoch, and restored again."""
    loader = new_loader(open_set(short_first), **options)
    state = next(state for epoch, done, state, _ in save_everywhere(loader, last=2) if (epoch, done) == (2, 4))
    ds = open_set(short_first)
    ds.set_epoch(2)
    loader = new_loader(ds, **options)
    loader.load_state_dict(state)
    states = [(4, loader.state_dict())]
    for done, _ in enumerate(loader, 5):
        states.append((done, loader.state_dict()))
    states.append((done, loader.state_dict()))
    assert done == len(expected[2])
    for done, again in states:
        ds.set_epoch(2)
        loader.load_state_dict(again)
        assert keys(loader) == expected[2][done:]
        ds.set_epoch(3)
        assert keys(loader) == expected[3]


@pytest.mark.parametrize("options", WORKERS[:3])
@pytest.mark.parametrize("batch_size", [None, 1])
def test_epochs_that_are_not_set_come_whole_after_the_rest(
    short_first: Any, expected: Any, options: Any, batch_size: Any
) -> None:
    """torchtitan wants batch_size=1, where torchdata has a sampler of its own around this one."""

    def make() -> StatefulDataLoader:
        ds = open_set(short_first, epoch=2)
        return StatefulDataLoader(ds, batch_size, sampler=ds.sampler(), collate_fn=lambda batch: batch, **options)

    state = state_after(make(), 3)
    loader = make()
    loader.load_state_dict(state)
    for rest in (expected[2][3:], expected[2], expected[2]):
        assert keys(batch if batch_size is None else batch[0] for batch in loader) == rest


def test_a_pass_without_a_batch_says_so(short_first: Any) -> None:
    states = save_everywhere(new_loader(open_set(short_first)), last=1)
    loader = new_loader(open_set(short_first))
    for _, _, state, _ in states[-2:]:
        loader.load_state_dict(state)
        message = (
            "epoch 1 was over when the loader's state was saved, so no batch is left; call set_epoch(2) to continue"
        )
        with pytest.warns(UserWarning, match=f"^{re.escape(message)}$"):
            assert list(loader) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.load_state_dict(states[0][2])
        assert len(list(loader)) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_another_epoch_is_refused(short_first: Any, expected: Any, workers: int) -> None:
    states = save_everywhere(new_loader(open_set(short_first), num_workers=workers), last=2)

    def error(state: Any, in_force: int) -> str:
        ds = open_set(short_first, epoch=in_force)
        loader = new_loader(ds, num_workers=workers)
        loader.load_state_dict(state)
        message = refused(loader, ValueError)
        assert ds.epoch == in_force
        return message

    where = {(epoch, done, is_over): state for epoch, done, state, is_over in states}
    n = len(expected[2])
    for done, is_over, in_force in [(1, False, 1), (1, False, 3), (n, False, 1), (n, True, 1), (n, True, 4)]:
        assert error(where[2, done, is_over], in_force) == (
            f"epoch is {in_force}, but the loader's state is at iteration {done} of epoch 2: "
            "call set_epoch(2) before the pass, and begin the loop there"
        )


@pytest.mark.parametrize("workers", [0, 1])
def test_without_the_sampler_nothing_goes_on(short_first: Any, workers: int) -> None:
    """torchdata's own sampler would skip the next epoch, or its start; the message says how to use the state."""
    remedy = (
        "to use a state that was saved without it, call ds.set_epoch(epoch of the last batch used) and, for the rest "
        "of that epoch, give sampler=range(its iteration + 1, len(ds))"
    )
    make: Callable[[], StatefulDataLoader] = lambda: StatefulDataLoader(  # noqa: E731
        open_set(short_first), batch_size=None, num_workers=workers
    )
    state = state_after(make(), 1)
    loader = make()
    loader.load_state_dict(state)
    assert (
        "a StatefulDataLoader would skip batches if it resumes after the end of an epoch: give it "
        f"sampler=ds.sampler(), from the first run on; {remedy}"
    ) in refused(loader, ConfigError)
    loader = new_loader(open_set(short_first), num_workers=workers)
    loader.load_state_dict(state)
    assert refused(loader, FormatError) == f"the loader's state was saved without sampler=ds.sampler(); {remedy}"


class Around(Dataset):
    """A data set of the user's, with the state of ours."""

    def __init__(self, inner: PackedDataset) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, i: int) -> Any:
        return self.inner[i]

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)


class IteratesItself(Around, IterableDataset):
    def __iter__(self) -> Any:
        return iter(self.inner)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [Around, IteratesItself])
def test_a_data_set_around_ours(short_first: Any, expected: Any, workers: int, kind: type[Around]) -> None:
    """One with indices goes on by our sampler, and is refused without it; one that iterates takes no sampler."""

    def make(*, with_sampler: bool = kind is Around) -> StatefulDataLoader:
        ds = open_set(short_first, epoch=2)
        sampler = ds.sampler() if with_sampler else None
        return StatefulDataLoader(kind(ds), batch_size=None, sampler=sampler, num_workers=workers)

    n = len(expected[2])
    for done in (1, 4, n):
        state = state_after(make(), done)
        loader = make()
        loader.load_state_dict(state)
        # What iterates by the data set's own state has left an epoch that was over.
        assert keys(loader) == (expected[3] if kind is IteratesItself and done == n else expected[2][done:])
    if kind is Around:
        loader = make(with_sampler=False)
        loader.load_state_dict(state)
        assert "give it sampler=ds.sampler()" in refused(loader, ConfigError)


def test_another_set_is_refused(packed: Any, tmp_path: Path) -> None:
    state = state_after(new_loader(open_set(packed)), 1)
    loader = new_loader(open_set(write_set(tmp_path, [(16, 1, 14)], num_gpus=2, fingerprint="fp-1")))
    loader.load_state_dict(state)
    assert refused(loader, FormatError).startswith("the loader state belongs to the packed set fp-0, but ")


def test_an_epoch_set_during_a_pass_ends_it(short_first: Any) -> None:
    ds = open_set(short_first)
    it = iter(new_loader(ds))
    next(it)
    ds.set_epoch(2)
    with pytest.raises(RuntimeError, match=r"^epoch 2 was set while iterating over epoch 1: iterate again$"):
        next(it)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_sampler_under_a_plain_loader(short_first: Any, expected: Any, workers: int) -> None:
    """By the data set's own state, which is also what the sampler's is: JSON, for `hbpack rebalance` too."""
    ds = open_set(short_first, epoch=2)
    sampler = ds.sampler()
    assert len(sampler) == len(expected[2])
    for batch in islice(DataLoader(ds, batch_size=None, sampler=sampler), 4):
        assert sampler.state_dict() == ds.state_dict(batch["iteration"] + 1)
    state = json.loads(json.dumps(sampler.state_dict()))
    ds = open_set(short_first)
    ds.load_state_dict(state)
    loader = DataLoader(ds, batch_size=None, sampler=ds.sampler(), num_workers=workers)
    assert keys(loader) == expected[2][4:]
    assert keys(loader) == expected[2]


def test_the_docs_have_this_way(repo: Path) -> None:
    """Nothing that we show makes a StatefulDataLoader that cannot go on."""
    texts = [*(repo / "docs").glob("*.md"), *(repo / "examples").glob("*.py"), repo / "packer_cli/loader/dataset.py"]
    calls = [line for text in texts for line in text.read_text().splitlines() if "StatefulDataLoader(" in line]
    assert calls
    assert all("sampler=" in line for line in calls)
