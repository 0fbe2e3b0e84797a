"""A set whose current version changes: states go back to their own, and processes agree on one."""

from __future__ import annotations

import gc
import importlib
import json
import pickle
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from packer_cli.cli.main import main
from packer_cli.errors import ConfigError, FormatError
from packer_cli.loader import PackedDataset
from packer_cli.loader.adapters.verl import PackedSFTDataset
from tests.cli_runner import run
from tests.loader import torchtitan_twin
from tests.loader.version_worker import read_versions
from tests.ranks import run_ranks
from tests.reference import home

DONE = 3


def call(*arguments: object) -> None:
    done = run(main, *arguments)
    assert done.code == 0, done.stderr


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, repo: Path) -> Path:
    """A set of two versions, the second with more data, and inputs for others beside it."""
    folder = tmp_path_factory.mktemp("weeks")
    lines = (repo / "examples" / "sample" / "chats.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    for number in range(12):
        part = "".join(lines[number * 40 : number * 40 + 40])
        (folder / f"week-{number}.jsonl").write_text(part, encoding="utf-8")
    options = ["--tokenizer", repo / "examples" / "sample" / "tokenizer", "--groups", "512:1", "--gpus", "2"]
    call("pack", folder / "week-0.jsonl", *options, "--validation", "10%", "--output", folder / "OUT")
    call("append", folder / "OUT", folder / "week-1.jsonl")
    return folder / "OUT"


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made.parent, tmp_path / "copy", symlinks=True)
    return tmp_path / "copy" / "OUT"


def first_folder(out: Path) -> Path:
    return out / json.loads((out / "versions.jsonl").read_text().splitlines()[0])["folder"]


def keys(batches: Any) -> list[tuple[int, int, int, list[int]]]:
    return [(each["epoch"], each["iteration"], each["pack_id"], each["sample_ids"].tolist()) for each in batches]


def first_version(made: Path, begin: int = DONE) -> list[Any]:
    return keys(PackedDataset(f"{made}@1", 0, 2).iter_from(begin))


def state_of_first(made: Path, done: int = DONE) -> Any:
    ds = PackedDataset(f"{made}@1", 0, 2)
    state = ds.state_dict(done)
    assert state["planned_fingerprint"] == first_folder(made).name
    del ds
    gc.collect()  # A version that is read is not pruned.
    return json.loads(json.dumps(state))


def test_a_state_goes_back_to_its_version(made: Path) -> None:
    wanted = first_version(made)
    assert wanted != keys(PackedDataset(made, 0, 2).iter_from(DONE))
    ds = PackedDataset(made, 0, 2, verify="full", pad_to="capacity")
    current = ds.state_dict(DONE)
    ds.load_state_dict(state_of_first(made))
    assert Path(ds.folder) == first_folder(made)
    assert ds.path == made
    assert {batch["input_ids"].shape[1] for batch in ds.iter_from(0)} == {512}
    ds.load_state_dict(state_of_first(made))
    assert keys(pickle.loads(pickle.dumps(ds))) == wanted
    assert keys(ds) == wanted
    ds.load_state_dict(current)
    assert ds.folder == str(home(made))
    assert keys(ds) == keys(PackedDataset(made, 0, 2).iter_from(DONE))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_loader_goes_on_with_it(made: Path, workers: int) -> None:
    ds = PackedDataset(made, 0, 2)
    ds.load_state_dict(state_of_first(made))
    loader: Any = DataLoader(ds, batch_size=None, sampler=ds.remaining(), num_workers=workers)
    assert keys(loader) == first_version(made)


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
def test_a_stateful_loader_goes_back_through_its_sampler(made: Path, options: dict[str, Any]) -> None:
    def loader_of(name: object) -> Any:
        ds = PackedDataset(name, 0, 2)  # type: ignore[arg-type]
        return StatefulDataLoader(ds, batch_size=None, sampler=ds.sampler(), **options)

    before = loader_of(f"{made}@1")
    list(islice(before, DONE))
    state = before.state_dict()
    loader = loader_of(made)
    loader.load_state_dict(state)
    assert keys(loader) == first_version(made)
    loader.dataset.set_epoch(1)
    assert keys(loader) == keys(PackedDataset(f"{made}@1", 0, 2, epoch=1))


def test_workers_that_began_before_do_not_read_another_version(made: Path) -> None:
    ds = PackedDataset(made, 0, 2)
    loader: Any = DataLoader(ds, batch_size=None, sampler=ds.sampler(), num_workers=1, persistent_workers=True)
    assert keys(loader) == keys(PackedDataset(made, 0, 2))
    ds.load_state_dict(state_of_first(made, 0))
    with pytest.raises(RuntimeError, match="a state of another version was loaded while iterating: make the DataLo"):
        keys(loader)


def test_nobody_iterates_on_over_another_version(made: Path) -> None:
    ds = PackedDataset(made, 0, 2)
    for begin in (lambda: ds, lambda: DataLoader(ds, batch_size=None, sampler=ds.sampler())):
        batches: Any = iter(begin())
        next(batches)
        ds.load_state_dict(state_of_first(made))
        with pytest.raises(RuntimeError, match="a state of another version was loaded while iterating"):
            next(batches)
        ds.load_state_dict(PackedDataset(made, 0, 2).state_dict(0))


@pytest.mark.parametrize(
    "ask", [len, lambda ds: ds.num_steps, lambda ds: ds.steps_of(1), lambda ds: len(ds.sampler())]
)
def test_a_length_that_was_used_stays(made: Path, ask: Any) -> None:
    ds = PackedDataset(made, 0, 2)
    ask(ds)
    with pytest.raises(ConfigError) as error:
        ds.load_state_dict(state_of_first(made))
    name = f"{made}@1"
    assert str(error.value) == (
        f"the loader state is of {name!r}, and the lengths of another version were used: open {name!r}"
    )
    assert ds.folder == str(home(made))
    ds = PackedDataset(name, 0, 2)
    ask(ds)
    ds.load_state_dict(state_of_first(made))
    assert keys(ds) == first_version(made)


def test_a_version_that_was_named_stays(made: Path) -> None:
    with pytest.raises(FormatError) as error:
        PackedDataset(f"{made}@2", 0, 2).load_state_dict(state_of_first(made))
    assert str(error.value) == (
        f"the loader state is of {f'{made}@1'!r}, and {f'{made}@2'!r} is another version: open {f'{made}@1'!r}"
    )


def test_a_version_that_was_removed_is_named(out: Path) -> None:
    state = state_of_first(out)
    call("prune", out, "--keep", "1")
    with pytest.raises(FormatError) as error:
        PackedDataset(out, 0, 2).load_state_dict(state)
    assert str(error.value) == (
        f"{f'{out}@1'!r}, the version of the loader state, was removed; see hbpack versions {out}"
    )


def test_another_set_is_another_set(made: Path) -> None:
    ds = PackedDataset(made, 0, 2)
    with pytest.raises(FormatError, match="resume with the set with which the run began"):
        ds.load_state_dict(state_of_first(made) | {"fingerprint": "0" * 32, "planned_fingerprint": "0" * 32})
    copy = PackedDataset(shutil.copytree(home(made), made.parent / "copy"), 0, 2)
    copy.load_state_dict(ds.state_dict(DONE))
    with pytest.raises(FormatError, match="resume with the set with which the run began"):
        copy.load_state_dict(state_of_first(made))


def test_a_link_to_the_current_version_is_followed_once(out: Path) -> None:
    ds = PackedDataset(out / "current", 0, 2)
    wanted = keys(PackedDataset(f"{out}@2", 0, 2))
    call("append", out, out.parent / "week-2.jsonl")
    assert keys(ds) == wanted


def test_rebalance_refuses_a_state_of_an_earlier_version(out: Path) -> None:
    file = out.parent / "state.json"
    file.write_text(json.dumps(state_of_first(out)))
    done = run(main, "rebalance", out, "--gpus", "4", "--state", file)
    assert done.code == 2
    assert done.stderr.endswith(
        f"is of {f'{out}@1'!r}, not of the current version; run hbpack restore {out}@1 first\n"
    )
    call("restore", f"{out}@1")
    call("rebalance", out, "--gpus", "4", "--state", file)
    assert len(PackedDataset(out, 0, 4))


def test_a_remote_set_goes_back(made: Path, tmp_path: Path) -> None:
    system = fsspec.filesystem("memory")
    system.put(f"{made}/", "/weeks/OUT/", recursive=True)
    options = {"cache_dir": tmp_path / "cache", "storage_options": {}}
    ds = PackedDataset("memory://weeks/OUT/", 0, 2, **options)  # type: ignore[arg-type]
    ds.load_state_dict(state_of_first(made))
    assert ds.folder == f"memory://weeks/OUT/{first_folder(made).name}"
    assert keys(ds) == first_version(made)
    system.rm("/weeks", recursive=True)


def test_a_validation_set_goes_with_its_training_set(made: Path) -> None:
    training, validation = PackedDataset(made, 0, 2), PackedDataset(made / "validation", 0, 2)
    training.load_state_dict(state_of_first(made))
    validation.require_held_out(training)
    assert Path(validation.folder) == first_folder(made) / "validation"
    assert keys(validation) == keys(PackedDataset(f"{made}@1/validation", 0, 2))
    named = PackedDataset(f"{made}@2/validation", 0, 2)
    named.require_held_out(training)
    assert Path(named.folder) == home(made) / "validation"


def test_torchtitan_goes_back_and_checks_again(made: Path, out: Path) -> None:
    def build(path: Path | str) -> Any:
        config = titan.PackedDataLoader.Config(path=str(path))
        return config.build(dp_world_size=2, dp_rank=0, max_context_length=512, num_tokens_per_batch=512)

    with nullcontext() if find_spec("torchtitan") else torchtitan_twin.installed():
        titan = importlib.import_module("packer_cli.loader.adapters.torchtitan")
    before, loader = build(f"{made}@1"), build(made)
    assert len([*islice(before, DONE)]) == DONE
    loader.load_state_dict(before.state_dict())
    for given, wanted in zip(islice(loader, 9), before, strict=False):
        assert given[0]["input"].tolist() == wanted[0]["input"].tolist()
    state = build(out).state_dict()
    call("plan", out, "--groups", "256:1")
    call("write", out)
    with pytest.raises(ConfigError, match="num_tokens_per_microbatch_per_dp_rank is 512, but the longest rows"):
        build(out)
    config = titan.PackedDataLoader.Config(path=str(out))
    loader = config.build(dp_world_size=2, dp_rank=0, max_context_length=256, num_tokens_per_batch=256)
    with pytest.raises(ConfigError, match="num_tokens_per_microbatch_per_dp_rank is 256, but the longest rows"):
        loader.load_state_dict(state)


def test_verl_has_counted_the_rows(made: Path) -> None:
    before, dataset = PackedSFTDataset(f"{made}@1"), PackedSFTDataset(made)
    with pytest.raises(ConfigError) as error:
        dataset.load_state_dict(before.state_dict())
    name = f"{made}@1"
    assert str(error.value) == (
        f"the checkpoint is of {name}, and this is {home(made)}: set data.train_files to {name}"
    )
    before.load_state_dict(before.state_dict())


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_a_run_keeps_its_version_until_it_ends(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = PackedDataset(out, 0, 2)
    call("append", out, out.parent / "week-2.jsonl")
    assert Path(PackedDataset(out, 0, 2).folder) == Path(before.folder) != home(out)
    assert PackedDataset(out / "validation", 0, 2).folder == f"{before.folder}/validation"
    monkeypatch.chdir(before.folder)
    assert PackedDataset(".", 0, 2).folder == "."
    assert Path(PackedDataset(f"{out}@3", 0, 2).folder) == home(out)
    call("prune", out, "--keep", "1")
    assert Path(PackedDataset(out, 0, 2).folder) == Path(before.folder)
    folder = before.folder
    del before
    gc.collect()
    call("prune", out, "--keep", "1")
    with pytest.raises(FormatError) as error:
        PackedDataset(out, 0, 2)
    assert str(error.value) == (
        f"{folder!r}, which other processes of the run read, is not here: give all the same files"
    )


def test_processes_without_a_store_do_not_ask_it(made: Path) -> None:
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        assert Path(PackedDataset(made, 0, 2).folder) == home(made)
    finally:
        dist.destroy_process_group()


def test_without_a_run_the_current_version_is_read(out: Path) -> None:
    PackedDataset(out, 0, 2)
    call("append", out, out.parent / "week-2.jsonl")
    assert Path(PackedDataset(out, 0, 2).folder) == home(out)


@pytest.mark.parametrize("rounds", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_ranks_read_one_version_while_others_are_made(out: Path, rounds: int) -> None:
    """A round of commands makes two versions; two rounds at most overlap with one of the ranks'."""
    store = out.parent / "store"

    def rounds_of_ranks() -> list[int]:
        file = store.with_suffix(".rounds")
        return [*map(int, file.read_text().split())] if file.exists() else [0, 0]

    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(run_ranks, read_versions, (str(out), str(store)), 2)
        for number in range(rounds):
            begun = rounds_of_ranks()[0]
            call("append", out, out.parent / f"week-{2 + number}.jsonl")
            call("plan", out, "--seed", number + 1)
            call("write", out)
            call("prune", out, "--keep", 1)
            while rounds_of_ranks()[0] == begun and not reading.done():
                time.sleep(0.05)
        store.with_suffix(".end").touch()
        reading.result()
    assert rounds_of_ranks()[1] > 1
    call("prune", out, "--keep", 1)  # Nobody reads the others any more.
    assert [*out.glob("[0-9a-f]" * 32)] == [home(out)]
