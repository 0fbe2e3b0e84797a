"""The recipes for trainers that cannot be installed beside the others, by their trainers' rules; and by themselves
where they can be imported.

The rules: allenai/OLMo-core 3.0.0, `data/data_loader.py` (`TextDataLoaderBase`), `data/utils.py` (`get_labels`,
`get_cumulative_document_lengths`), `train/train_module/transformer/train_module.py`; mosaicml/composer 0.32.1,
`trainer/trainer.py` (`_train_microbatches`), `core/data_spec.py`; ByteDance-Seed/VeOmni 0.1.12,
`data/data_collator.py` (`PackingCollator`), `trainer/text_trainer.py`, `utils/loss_utils.py`; NVIDIA/Megatron-LM at
d98e8a6, `megatron/training/datasets/sft_dataset.py` (`SFTDataset`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812

from tests.examples.reference import steps_of  # noqa: E402
from tests.examples.stand_ins import load_example, load_without  # noqa: E402
from tests.examples.test_examples import EPOCH  # noqa: E402
from tests.export.conftest import export, samples_of  # noqa: E402
from tests.tiny_model import block_mask, naive_loss, packed_loss, segments_of, shift  # noqa: E402

GROUPS, NUM_RANKS, STEP = "384:1:0", 2, 1
Pack = Callable[[str, int], Path]


def mean_loss(packed: Path, step: int) -> float:
    """Of all loss tokens of a step, its samples one by one."""
    packs = [pack for slots in steps_of(packed)[step] for pack in slots if pack]
    assert sum(len(pack["sample_ids"]) > 1 for pack in packs) > 1, "no pack holds several samples"
    return naive_loss(map(samples_of, packs)) / sum(pack["num_loss_tokens"] for pack in packs)


def row_loss(ids: Any, targets: Any, cu_seqlens: Any) -> tuple[float, int]:
    """Of one row, whose samples end at `cu_seqlens`."""
    segments = segments_of(cu_seqlens, len(ids))
    return packed_loss(ids, targets, torch.arange(len(ids)) - cu_seqlens[segments], block_mask(segments))


def one_segment(cu_seqlens: Any) -> Any:
    """The borders of a row whose samples are merged."""
    return cu_seqlens[[0, -1]]


# Megatron


def test_megatron(repo: Path, pack: Pack, tmp_path: Path) -> None:
    pytest.importorskip("megatron.core.datasets.indexed_dataset", exc_type=ImportError)
    packed = pack(GROUPS, NUM_RANKS)
    assert export(packed, "megatron", tmp_path / "dir").code == 0
    example = load_example(repo / "examples" / "megatron_dataset.py")
    rows = example.PackedDocuments(str(tmp_path / "dir"), 384)
    packs = [pack for step in steps_of(packed)[:EPOCH] for slots in step for pack in slots if pack]
    assert len(rows) == len(packs)
    found = merged = 0.0
    for row, one in zip(torch.utils.data.DataLoader(rows), packs, strict=True):  # Megatron's, in order.
        one_row = {name: value[0] for name, value in row.items()}
        assert one_row["tokens"][: one["num_tokens"]].tolist() == one["input_ids"].tolist()
        targets = one_row["labels"].masked_fill(one_row["loss_mask"] == 0, -100)
        borders = one_row["cu_seqlens"].unique()
        assert borders[: len(one["sample_ids"]) + 1].tolist() == one["cu_seqlens"].tolist()
        assert one_row["max_seqlen"] == borders.diff().max()
        assert (one_row["position_ids"] == 0).nonzero()[:, 0].tolist() == borders[:-1].tolist()
        found += row_loss(one_row["tokens"], targets, borders)[0]
        merged += row_loss(one_row["tokens"], targets, one_segment(borders))[0]
    wanted = naive_loss(map(samples_of, packs))
    assert found == pytest.approx(wanted, rel=1e-5)
    assert merged != pytest.approx(wanted, rel=1e-4)
    again = example.PackedDocuments(str(tmp_path / "dir"), 384, 2 * len(packs))
    assert torch.equal(again[len(packs) + 1]["tokens"], rows[1]["tokens"])
    with pytest.raises(ValueError, match="set --seq-length to the capacity of the group"):
        list(map(example.PackedDocuments(str(tmp_path / "dir"), 100).__getitem__, range(len(packs))))


# OLMo-core


class TextDataLoaderBase:
    """What it does with its subclass: bookkeeping, and a check of each batch."""

    def __init__(self, *, collator: Any, work_dir: Any, global_batch_size: int, dp_world_size: int, dp_rank: int):
        self._global_batch_size = global_batch_size
        self.dp_world_size, self.dp_rank = dp_world_size, dp_rank
        self.batches_processed, self._epoch = 0, None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self._iter_batches():  # type: ignore[attr-defined]
            self.batches_processed += 1
            assert batch["input_ids"].numel() == self._global_batch_size // self.dp_world_size
            yield batch


def olmo_core_losses(batch: dict[str, Any]) -> Iterator[tuple[float, int]]:
    """Of each row: `get_labels`, and borders where `doc_lens` are not 0."""
    labels = F.pad(batch["input_ids"].masked_fill(~batch["label_mask"], -100)[:, 1:], (0, 1), value=-100)
    for ids, targets, lengths in zip(batch["input_ids"], labels, batch["doc_lens"], strict=True):
        yield row_loss(ids, targets, F.pad(lengths[lengths != 0].cumsum(0), (1, 0)))


def test_olmo_core(repo: Path, pack: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed, path = pack(GROUPS, NUM_RANKS), repo / "examples" / "olmo_core_trainer.py"
    example = load_without(path, "olmo_core", monkeypatch, TextDataLoaderBase=TextDataLoaderBase, DataCollator=dict)
    total, merged, count = 0.0, 0.0, 0
    for rank in range(NUM_RANKS):
        loader = example.PackedDataLoader(packed, work_dir=tmp_path, dp_rank=rank, dp_world_size=NUM_RANKS)
        loader.reshuffle(1)
        batches = list(loader)
        assert len(batches) == loader.total_batches == len(steps_of(packed)) // 2  # Two epochs.
        batch = batches[STEP]
        assert batch["label_mask"].dtype == torch.bool
        assert batch["doc_lens"].dtype == torch.int32
        assert batch["max_doc_lens"] == [int(row.max()) for row in batch["doc_lens"]]
        for loss, num_tokens in olmo_core_losses(batch):
            total, count = total + loss, count + num_tokens
        one_document = {**batch, "doc_lens": batch["doc_lens"].sum(dim=1, keepdim=True)}
        merged += sum(loss for loss, _ in olmo_core_losses(one_document))
        assert (batch["step_tokens"] == batch["step_tokens"][0]).all()
        # As after a crash: what is left is the same.
        again = example.PackedDataLoader(packed, work_dir=tmp_path, dp_rank=rank, dp_world_size=NUM_RANKS)
        loader.batches_processed = STEP
        again.load_state_dict(loader.state_dict())
        again.reshuffle(1)
        assert [row["input_ids"].tolist() for row in again] == [row["input_ids"].tolist() for row in batches[STEP:]]
        again.batches_processed = 0
        again.reshuffle(2)
        assert [row["input_ids"].tolist() for row in again] != [row["input_ids"].tolist() for row in batches]
    assert count == batch["step_tokens"][0]
    wanted = mean_loss(packed, STEP)
    assert total / count == pytest.approx(wanted, rel=1e-6)
    assert merged / count != pytest.approx(wanted, rel=1e-4)


def test_olmo_core_itself(repo: Path, pack: Pack, tmp_path: Path) -> None:
    """Gradients of its train module on a step, and of its model on the samples one by one."""
    pytest.importorskip("olmo_core.train", exc_type=Exception)
    from olmo_core.train import Duration, TrainerConfig

    example = load_example(repo / "examples" / "olmo_core_trainer.py")
    packed = pack(GROUPS, 1)
    loader = example.PackedDataLoader(packed, work_dir=tmp_path, dp_rank=0, dp_world_size=1)
    module = example.make_module(None, loader, 1e-3, torch.device("cpu"))
    config = TrainerConfig(save_folder=str(tmp_path), device="cpu", max_duration=Duration.steps(1))
    config.build(module, loader)
    loader.reshuffle(1)
    batch = next(iter(loader))

    def gradients() -> dict[str, Any]:
        found = {name: weight.grad.clone() for name, weight in module.model.named_parameters()}
        module.model.zero_grad()
        return found

    def far(one: dict[str, Any], other: dict[str, Any]) -> float:
        return max(float((one[name] - other[name]).norm() / other[name].norm()) for name in other)

    merged = {key: value for key, value in batch.items() if "doc_lens" not in key}
    module.train_batch(batch, dry_run=True)
    found = gradients()
    module.train_batch(merged, dry_run=True)
    merged = gradients()
    packs = [pack for slots in steps_of(packed)[0] for pack in slots if pack]
    count = sum(pack["num_loss_tokens"] for pack in packs)
    for ids, mask in (sample for pack in packs for sample in samples_of(pack)):
        labels = shift(torch.tensor([token if keep else -100 for token, keep in zip(ids, mask, strict=True)]))
        logits = module.model(torch.tensor([ids]))[0]
        (F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum") / count).backward()
    wanted = gradients()
    assert far(found, wanted) < 1e-4
    assert far(merged, wanted) > 1e-2


# Composer


def test_composer(repo: Path, pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    from packer_cli.loader import PackedDataset

    packed, path = pack(GROUPS, NUM_RANKS), repo / "examples" / "composer_trainer.py"
    example = load_without(path, "composer", monkeypatch)
    steps = []
    for rank in range(NUM_RANKS):
        dataset = example.Steps(PackedDataset(packed, rank, NUM_RANKS))
        steps.append(list(dataset))
        assert len(steps[-1]) == len(steps_of(packed)) // 2
        steps[-1] = example.split_batch(steps[-1][STEP], 1)
        assert example.num_rows(steps[-1]) == len(steps_of(packed)[STEP])
    # `_train_microbatches`: each row's loss times its tokens over the mean of the ranks' tokens; DDP averages.
    share = sum(example.num_tokens(rows)["loss_generating"] for rows in steps) / NUM_RANKS
    total, merged = 0.0, 0.0
    for row in (row for rows in steps for row in rows):
        weight = example.num_tokens(row)["loss_generating"] / share
        ids, targets = row["input_ids"][0], shift(row["labels"][0])
        loss, count = row_loss(ids, targets, row["cu_seq_lens_q"])
        assert count == row["num_loss_tokens"]
        share_of_row = weight / max(count, 1) / NUM_RANKS
        total += loss * share_of_row
        merged += row_loss(ids, targets, one_segment(row["cu_seq_lens_q"]))[0] * share_of_row
    wanted = mean_loss(packed, STEP)
    assert total == pytest.approx(wanted, rel=1e-6)
    assert merged != pytest.approx(wanted, rel=1e-4)


def test_what_composer_does_to_a_row_by_itself() -> None:
    """Why the recipe has a `split_batch`: the borders of samples are gone, and nothing says so."""
    spec = pytest.importorskip("composer.core.data_spec", exc_type=Exception)
    row = {"input_ids": torch.zeros(1, 6, dtype=torch.long), "cu_seq_lens_q": torch.tensor([0, 2, 6])}
    (found,) = spec.default_split_batch(row, 1)
    assert found["cu_seq_lens_q"].tolist() == [0]


# VeOmni


def veomni_collate(features: list[dict[str, Any]]) -> dict[str, Any]:
    """`PackingCollator` without sequence parallelism, of one row: borders are where `position_ids` are 0."""
    (row,) = features
    begins = torch.nonzero(row["position_ids"] == 0)[:, 0]
    borders = torch.cat([begins, torch.tensor([len(row["position_ids"])])]).int()
    return {**{key: value[None] for key, value in row.items()}, "cu_seq_lens_q": borders}


def veomni_mean_loss(steps: list[list[dict[str, Any]]]) -> float:
    """`reduce_global_loss_token`: the sum of the losses over the labels that carry one, of all ranks' rows."""
    total, count = 0.0, 0
    for row in (row for rows in steps for row in rows):
        loss, num_tokens = row_loss(row["input_ids"][0], shift(row["labels"][0]), row["cu_seq_lens_q"])
        total, count = total + loss, count + num_tokens
    return total / count


def test_veomni(repo: Path, pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    from packer_cli.loader import PackedDataset

    packed, path = pack(GROUPS, NUM_RANKS), repo / "examples" / "veomni_trainer.py"
    example = load_without(path, "veomni", monkeypatch)
    steps = []
    for rank in range(NUM_RANKS):
        loader = example.PackedDataLoader(PackedDataset(packed, rank, NUM_RANKS), veomni_collate)
        loader.set_epoch(0)
        found = list(loader)
        assert len(found) == len(loader) == len(steps_of(packed)) // 2
        steps.append(found[STEP])
        rows = iter(loader)
        for _ in range(STEP):
            next(rows)
        again = example.PackedDataLoader(PackedDataset(packed, rank, NUM_RANKS), veomni_collate)
        again.load_state_dict(loader.state_dict())
        again.set_epoch(0)
        left = [[row["input_ids"].tolist() for row in rows] for rows in again]
        assert left == [[row["input_ids"].tolist() for row in rows] for rows in found[STEP:]]
    wanted = mean_loss(packed, STEP)
    assert veomni_mean_loss(steps) == pytest.approx(wanted, rel=1e-6)
    merged = [[{**row, "cu_seq_lens_q": one_segment(row["cu_seq_lens_q"])} for row in rows] for rows in steps]
    assert veomni_mean_loss(merged) != pytest.approx(wanted, rel=1e-4)


def test_veomni_collates_it(repo: Path, pack: Pack) -> None:
    collator = pytest.importorskip("veomni.data.data_collator", exc_type=Exception)
    from packer_cli.loader import PackedDataset

    example, packed = load_example(repo / "examples" / "veomni_trainer.py"), pack(GROUPS, NUM_RANKS)
    steps = []
    for rank in range(NUM_RANKS):
        loader = example.PackedDataLoader(PackedDataset(packed, rank, NUM_RANKS), collator.MainCollator())
        steps.append(list(loader)[STEP])
    assert veomni_mean_loss(steps) == pytest.approx(mean_loss(packed, STEP), rel=1e-6)
