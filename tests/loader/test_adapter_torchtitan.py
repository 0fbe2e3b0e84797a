"""torchtitan's data loader over a packed set, with torchtitan's own classes where it is installed."""

from __future__ import annotations

import importlib
import json
import warnings
from collections import Counter
from contextlib import nullcontext
from importlib.util import find_spec
from itertools import islice
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from packer_cli.errors import ConfigError, FormatError
from packer_cli.loader import PackedDataset, metadata_of
from packer_cli.loader.losses import token_losses
from tests.loader import torchtitan_twin
from tests.loader.llama import sample_losses, tiny_llama

CAPACITY = 64
IS_INSTALLED = find_spec("torchtitan") is not None


@pytest.fixture(scope="module")
def titan() -> Any:
    """The adapter's module."""
    with nullcontext() if IS_INSTALLED else torchtitan_twin.installed():
        return importlib.import_module("packer_cli.loader.adapters.torchtitan")


@pytest.fixture(scope="module")
def own_rows(make_set: Any, tmp_path_factory: Any) -> Any:
    """Rows of one GPU each, two ranks; two epochs, then made ones."""
    return make_set(tmp_path_factory.mktemp("titan"), [(CAPACITY, 1, 15)], num_gpus=2)


@pytest.fixture(scope="module")
def shared_rows(make_set: Any, tmp_path_factory: Any) -> Any:
    """Rows that two GPUs share, four GPUs."""
    return make_set(tmp_path_factory.mktemp("titan"), [(CAPACITY, 2, 15)])


def build(titan: Any, packed: Any, dp_rank: int = 0, *, dp_world_size: int = 2, **changes: Any) -> Any:
    """As `torchtitan.trainer.Trainer.__init__` does it."""
    runtime = {"tokenizer": None, "max_context_length": CAPACITY, "num_tokens_per_batch": CAPACITY}
    runtime |= {name: changes.pop(name) for name in list(changes) if name in {*runtime, "seq_len", "local_batch_size"}}
    config = titan.PackedDataLoader.Config(path=str(packed.path), **changes)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the plan has steps of several iterations")
        return config.build(dp_world_size=dp_world_size, dp_rank=dp_rank, **runtime)


def same(one: Any, other: Any) -> bool:
    return one[0].keys() == other[0].keys() and all(
        torch.equal(x, y) for x, y in zip([*one[0].values(), one[1]], [*other[0].values(), other[1]], strict=True)
    )


def test_it_is_one_of_torchtitans(titan: Any, own_rows: Any) -> None:
    loader = build(titan, own_rows)
    assert isinstance(loader, titan.BaseDataLoader)
    if IS_INSTALLED:
        from torchtitan.config import Configurable

        assert isinstance(titan.PackedDataLoader.Config(path="OUT"), Configurable.Config)
        assert titan.PackedDataLoader.Config(path="OUT").to_dict()["path"] == "OUT"
    loader.close()


def test_one_shape_and_every_sample_once_an_epoch(titan: Any, own_rows: Any) -> None:
    """CUDA graphs refuse another shape, dtype or key; fillers, full and padded rows are alike."""
    seen: dict[int, Counter[int]] = {epoch: Counter() for epoch in range(3)}
    kinds = set()
    for rank in range(2):
        for batch in build(titan, own_rows, rank):
            known = metadata_of(batch)
            if known["epoch"] not in seen:
                break
            inputs, labels = batch
            assert list(inputs) == ["input", "positions"]
            for tensor in (*inputs.values(), labels):
                assert (tensor.dtype, tensor.shape) == (torch.int64, (CAPACITY,))
            seen[known["epoch"]].update(known["sample_ids"].tolist())
            # The tail is a segment of its own.
            tail = sum(len(own_rows.samples[i].tokens) for i in known["sample_ids"].tolist())
            assert inputs["positions"][tail:].tolist() == list(range(CAPACITY - tail))
            assert (labels[max(tail - 1, 0) :] == -100).all()
            assert (inputs["input"][tail:] == own_rows.pad).all()
            kinds.add((tail > 0) + (tail == CAPACITY))
    assert [*seen.values()] == [dict.fromkeys(own_rows.samples, 1)] * 3
    assert kinds == {0, 1, 2}, "not fillers, padded and full rows"


def test_the_loss_is_that_of_the_samples(titan: Any, own_rows: Any) -> None:
    """Documents begin where positions are 0, as torchtitan's `get_document_mask_mod` has it."""
    model = tiny_llama("sdpa")
    batches = [b for b in islice(build(titan, own_rows), 10) if metadata_of(b)["num_samples"] > 2]
    assert len(batches) > 1
    for inputs, labels in batches[:2]:
        known = metadata_of((inputs, labels))
        logits = model(input_ids=inputs["input"][None], position_ids=inputs["positions"][None]).logits
        found = token_losses(logits, labels)
        wanted = torch.cat(sample_losses(model, [own_rows.samples[i] for i in known["sample_ids"].tolist()]))
        torch.testing.assert_close(found.sum(), wanted.sum(), rtol=1e-12, atol=0)
        one_document = torch.arange(CAPACITY)[None]
        merged = token_losses(model(input_ids=inputs["input"][None], position_ids=one_document).logits, labels)
        assert abs(merged.sum().item() - wanted.sum().item()) > 1e-2


@pytest.mark.skipif(not IS_INSTALLED, reason="torchtitan is not installed")
def test_torchtitan_finds_the_documents(titan: Any, own_rows: Any) -> None:
    """With its own function, from which its varlen and FlexAttention masks come."""
    from torchtitan.models.common.attention import create_varlen_metadata_for_document

    is_flat = titan.BaseDataLoader.__module__ == "torchtitan.components.data.loader"
    for batch in islice(build(titan, own_rows), len(own_rows.epochs[0])):
        positions = batch[0]["positions"] if is_flat else batch[0]["positions"][None]
        found = create_varlen_metadata_for_document(positions)
        assert found.cu_seq_q.tolist() == metadata_of(batch)["cu_seqlens"].tolist()


def test_it_goes_on_where_a_checkpoint_was(titan: Any, own_rows: Any, tmp_path: Any) -> None:
    """Saved and loaded as torchtitan's CheckpointManager does, in an epoch, at its end, and in the next."""
    length = len(own_rows.epochs[0])
    everything = list(islice(build(titan, own_rows), length + 9))
    for stop in (0, 3, length, length + 2):
        loader, folder = build(titan, own_rows), tmp_path / str(stop)
        list(islice(loader, stop))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one process
            dcp.save({"dataloader": loader}, checkpoint_id=folder)
            again = build(titan, own_rows)
            dcp.load({"dataloader": again}, checkpoint_id=folder)
        assert all(same(x, y) for x, y in zip(islice(again, 4), everything[stop:], strict=False))


def test_an_empty_state_is_the_start(titan: Any, own_rows: Any, shared_rows: Any) -> None:
    loader = build(titan, own_rows)
    loader.load_state_dict({})
    assert metadata_of(next(iter(loader)))["iteration"] == 0
    with pytest.raises(FormatError, match="belongs to the packed set another, but"):
        loader.load_state_dict({**loader.state_dict(), "fingerprint": "another"})


def test_context_parallel_ranks_share_rows(titan: Any, shared_rows: Any) -> None:
    """torchtitan gives the ranks of a context-parallel group one dp_rank, and slices what they load."""
    for dp_rank in range(2):
        rows = PackedDataset(shared_rows.path, 2 * dp_rank, 4, format="torchtitan", pad_to="capacity")
        loader = build(titan, shared_rows, dp_rank)
        for batch, row in zip(islice(loader, len(rows)), rows, strict=True):
            assert same(batch, row)
            assert len(batch[1]) % 4 == 0
            assert metadata_of(batch)["dp_rank"] == dp_rank


def test_releases_with_a_batch_dimension(titan: Any, own_rows: Any) -> None:
    old = build(titan, own_rows, seq_len=CAPACITY, local_batch_size=1, num_tokens_per_batch=None)
    for (inputs, labels), (flat, flat_labels) in zip(islice(old, 3), build(titan, own_rows), strict=False):
        assert labels.shape == (1, CAPACITY)
        assert torch.equal(labels[0], flat_labels)
        assert {name: x[0].tolist() for name, x in inputs.items()} == {name: x.tolist() for name, x in flat.items()}
    with pytest.raises(ConfigError, match=r"^training.local_batch_size is 4: a row is a batch, so set it to 1$"):
        build(titan, own_rows, seq_len=CAPACITY, local_batch_size=4)


def test_settings_that_do_not_fit(titan: Any, own_rows: Any, shared_rows: Any, packed: Any) -> None:
    name = repr(str(own_rows.path))
    with pytest.raises(ConfigError) as error:
        build(titan, own_rows, num_tokens_per_batch=128)
    assert str(error.value) == (
        "training.num_tokens_per_microbatch_per_dp_rank is 128, but the longest rows of "
        f"{name} have 64 tokens: set it to 64"
    )
    with pytest.raises(ConfigError) as error:
        build(titan, own_rows, max_context_length=32)
    assert str(error.value) == (
        f"training.max_context_length is 32, but the longest rows of {name} have 64 tokens: set it to 64"
    )
    with pytest.raises(ConfigError) as error:
        build(titan, shared_rows, dp_world_size=4)
    assert str(error.value) == (
        f"{str(shared_rows.path)!r} was planned for 4 GPUs, 2 a row, but torchtitan has 4 data-parallel ranks: "
        "set --parallelism.context_parallel_degree 2 and start it on 4 GPUs, or plan again for these ranks"
    )
    with pytest.raises(ConfigError) as error:
        build(titan, packed, dp_world_size=4)
    assert str(error.value) == (
        f"{str(packed.path)!r} has groups of degrees sp1, sp2, sp4, but torchtitan's are fixed: plan all groups with "
        "the same degrees"
    )


def test_what_it_cannot_keep_is_said(titan: Any, make_set: Any, tmp_path: Any) -> None:
    made = make_set(tmp_path / "set", [(32, 1, 9), (CAPACITY, 1, 9)], num_gpus=2, num_epochs=1)
    config = titan.PackedDataLoader.Config(path=str(made.path))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config.build(dp_world_size=2, dp_rank=0, tokenizer=None, max_context_length=64, num_tokens_per_batch=64)
    lengths, steps = (str(warning.message) for warning in caught)
    assert lengths == (
        "rows have 32 or 64 tokens, but CUDA graphs need one length: set --training.disable_cuda_graphs, or plan "
        "one group"
    )
    assert steps == (
        "the plan has steps of several iterations, but torchtitan reads the same number of batches in each step: plan "
        "without --global-tokens to keep the plan's steps"
    )


def test_rows_of_more_documents_than_graphs_hold_are_refused(titan: Any, own_rows: Any) -> None:
    most = max(len(pack.samples) for pack in own_rows.packs)
    assert build(titan, own_rows, max_num_documents=most + 1).dataset
    with pytest.raises(ConfigError) as error:
        build(titan, own_rows, max_num_documents=most)
    assert str(error.value) == (
        f"max_num_documents is {most}, but {str(own_rows.path)!r} has a pack of {most} samples, and padding may be "
        f"one segment more: give at least {most + 1}, or pack again with --max-samples {most - 1}"
    )


def test_graphs_of_causal_rows_hold_one_document(titan: Any, make_set: Any, tmp_path: Any) -> None:
    packed = make_set(tmp_path, [(CAPACITY, 1, 15)], num_gpus=2)
    config = json.loads((packed.path / "hbpack.json").read_text())["config"]
    packed.edit_manifest(config=config | {"plan": {"mask": "causal"}})
    inputs, _ = next(iter(build(titan, packed, max_num_documents=1)))
    assert (inputs["positions"] == 0).sum() == 1
