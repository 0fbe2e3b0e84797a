"""NeMo Automodel: its own functions where it is installed, and their rules, written down here, everywhere.

The rules are those of nemo-automodel 0.7.0 and NVIDIA-NeMo/Automodel at 36044ad (August 2026), under `components/`:
`datasets/llm/packed_sequence.py` (`_pad_pack`), `datasets/utils.py` (`packed_sequence_thd_collater`),
`distributed/thd_utils.py` (`process_input_for_thd`), `loss/masked_ce.py` (which does not shift labels: the data sets
do, in `datasets/llm/formatting_utils.py`, `_package_tokenized_example`).
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.export.conftest import CAPACITY, NUM_COMPARED, samples_of

Row = dict[str, list[int]]


@pytest.fixture(scope="session")
def rows(exported) -> list[Row]:
    """The export, as `datasets.load_from_disk` gives it."""
    import datasets

    loaded = datasets.load_from_disk(str(exported("automodel")))
    assert loaded.column_names == ["input_ids", "labels", "position_ids", "seq_lens", "seq_lens_padded"]
    return list(loaded)


def test_the_rows(rows, filled):
    assert len(rows) == len(filled)
    for row, pack in zip(rows, filled, strict=True):
        samples = samples_of(pack)
        lengths = [len(ids) for ids, _ in samples]
        pads = CAPACITY - sum(lengths)
        shifted = []
        for ids, mask in samples:
            shifted += [token if keep else -100 for token, keep in zip(ids[1:], mask[1:], strict=True)] + [-100]
        places = [place for length in lengths[:-1] for place in range(length)] + list(range(lengths[-1] + pads))
        assert row == {
            "input_ids": [token for ids, _ in samples for token in ids] + [0] * pads,
            "labels": shifted + [-100] * pads,
            "position_ids": places,
            "seq_lens": lengths,
            "seq_lens_padded": [*lengths[:-1], lengths[-1] + pads],
        }


def segments(seq_lens_padded: list[int]) -> Any:
    """`process_input_for_thd` without context parallelism: the pads belong to the last sample."""
    import torch

    from tests.tiny_model import segments_of

    return segments_of(torch.tensor([0, *seq_lens_padded]).cumsum(0), CAPACITY)


def test_the_loss_is_that_of_the_samples(rows, filled, wanted_loss):
    torch = pytest.importorskip("torch")
    from tests.tiny_model import block_mask, packed_loss

    found, merged = 0.0, 0.0
    for row in rows[:NUM_COMPARED]:
        ids, labels, places = (torch.tensor(row[name]) for name in ("input_ids", "labels", "position_ids"))
        found += packed_loss(ids, labels, places, block_mask(segments(row["seq_lens_padded"])))[0]
        merged += packed_loss(ids, labels, places, block_mask(torch.zeros_like(ids)))[0]
    assert found == pytest.approx(wanted_loss, rel=1e-6)
    assert merged != pytest.approx(wanted_loss, rel=1e-4)


def test_its_own_functions_take_it(rows, filled, exported, wanted_loss):
    """The loader that a recipe with `prepacked: true` builds, to the loss that it computes."""
    loader = pytest.importorskip("nemo_automodel.components.datasets.loader", exc_type=Exception)
    from nemo_automodel.components.datasets.utils import packed_sequence_thd_collater
    from nemo_automodel.components.distributed.thd_utils import process_input_for_thd
    from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy

    from tests.tiny_model import block_mask, packed_loss, segments_of, tiny_llama

    config = loader.DataloaderConfig(
        dataset_config=loader.make_dataset_config(
            "datasets.load_from_disk", {"dataset_path": str(exported("automodel"))}
        ),
        packing=loader.make_packing_config("thd", {"packed_sequence_size": CAPACITY, "prepacked": True}),
        collate_fn=packed_sequence_thd_collater,
        shuffle=False,
    )
    assert config.emits_thd
    batches = iter(config.build(dp_rank=0, dp_world_size=1))
    found = 0.0
    for _ in range(NUM_COMPARED):
        batch = process_input_for_thd(next(batches))
        ids, labels, places = (batch[name] for name in ("input_ids", "labels", "position_ids"))
        mask = block_mask(segments_of(batch["cu_seqlens"], len(ids)))
        loss, _ = packed_loss(ids, labels, places, mask)
        logits = tiny_llama()(
            input_ids=ids[None], position_ids=places[None], attention_mask=(~mask).double() * -1e30, use_cache=False
        ).logits
        assert MaskedCrossEntropy(fp32_upcast=False)(logits, labels).item() == pytest.approx(loss, rel=1e-6)
        found += loss
    assert found == pytest.approx(wanted_loss, rel=1e-6)
