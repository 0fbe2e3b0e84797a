"""verl's SFT trainer: its own collator where it is installed, and its loss, written down here.

The loss is that of verl 0.9.1: `workers/engine/fsdp/transformer_impl.py` (`prepare_model_inputs` joins the rows of a
batch and rolls the ids, both over all of it; with `use_remove_padding` the model gets position ids and no mask) and
`workers/utils/losses.py` (`sft_loss` rolls the loss mask alike, and divides by its sum over all ranks).
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, DistributedSampler  # noqa: E402

from packer_cli.cli.main import main  # noqa: E402
from packer_cli.errors import ConfigError  # noqa: E402
from packer_cli.loader.adapters.verl import PackedSFTDataset  # noqa: E402
from tests.cli_runner import run  # noqa: E402
from tests.reference import read_packs  # noqa: E402
from tests.tiny_model import naive_loss, tiny_llama  # noqa: E402

NUM_ROWS = 3


@pytest.fixture(scope="module")
def packed(repo, tmp_path_factory):
    sample, out = repo / "examples/sample", tmp_path_factory.mktemp("verl") / "OUT"
    lines = (sample / "chats.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:60]
    (out.parent / "chats.jsonl").write_text("".join(lines), encoding="utf-8")
    options = ["--groups", "256:1,512:2", "--gpus", 2, "--shard-size", "64KiB", "--workers", 1, "--output", out]
    assert run(main, "pack", out.parent / "chats.jsonl", "--tokenizer", sample / "tokenizer", *options).code == 0
    return out


def test_each_row_is_a_pack(packed):
    dataset, packs = PackedSFTDataset([str(packed)], tokenizer=None, config={}), read_packs(packed)
    assert len(dataset) == len(packs) > 10
    for row, pack in zip(dataset, packs, strict=True):
        assert row["input_ids"].tolist() == pack["input_ids"].tolist()
        assert row["loss_mask"].tolist() == pack["loss_mask"].tolist()
        borders = (row["position_ids"] == 0).nonzero()[:, 0].tolist()
        assert borders == pack["cu_seqlens"][:-1].tolist()
    assert len(PackedSFTDataset(packed, max_samples=5)) == 5
    with pytest.raises(IndexError, match=f"pack {len(packs)} of {len(packs)}"):
        dataset[len(packs)]


def test_the_loss_is_that_of_the_samples(packed):
    dataset, packs = PackedSFTDataset(packed), read_packs(packed)[:NUM_ROWS]
    rows = [dataset[i] for i in range(NUM_ROWS)]
    joined = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
    targets, mask = (torch.roll(joined[name], shifts=-1) for name in ("input_ids", "loss_mask"))

    def loss(**inputs):
        with torch.no_grad():
            logits = tiny_llama()(input_ids=joined["input_ids"][None], use_cache=False, **inputs).logits[0]
        return float((torch.nn.functional.cross_entropy(logits, targets, reduction="none") * mask).sum())

    samples = [
        [
            (pack["input_ids"][begin:end].tolist(), pack["loss_mask"][begin:end].tolist())
            for begin, end in zip(pack["cu_seqlens"][:-1], pack["cu_seqlens"][1:], strict=True)
        ]
        for pack in packs
    ]
    wanted = naive_loss(iter(samples))
    assert loss(position_ids=joined["position_ids"][None]) == pytest.approx(wanted, rel=1e-5)
    assert loss() != pytest.approx(wanted, rel=1e-4)


def test_its_collator_and_workers_take_the_rows(packed):
    verl = pytest.importorskip("verl.utils.dataset.dataset_utils", exc_type=ImportError)
    dataset = PackedSFTDataset(str(packed))
    sampler = DistributedSampler(dataset, num_replicas=2, rank=1, shuffle=True, drop_last=True)
    collate = verl.SFTTensorCollator(verl.DatasetPadMode.NO_PADDING)
    batches = list(DataLoader(dataset, batch_size=2, sampler=sampler, collate_fn=collate, num_workers=1))
    rows = [row for batch in batches for row in batch["input_ids"].unbind()]
    assert [row.tolist() for row in rows] == [dataset[i]["input_ids"].tolist() for i in sampler]


def test_what_does_not_fit_is_refused(packed, repo, tmp_path):
    with pytest.raises(ConfigError, match="give one packed set, not 2"):
        PackedSFTDataset([str(packed), str(packed)])
    sample = repo / "examples/sample"
    line = (sample / "chats.jsonl").read_text(encoding="utf-8").splitlines()[0]
    (tmp_path / "chats.jsonl").write_text(line[:-1] + ', "weight": 2}\n', encoding="utf-8")
    for options, message in [((), "has loss weights"), (("--mask", "causal"), "was planned with --mask causal")]:
        inputs = tmp_path / "chats.jsonl" if not options else sample / "chats.jsonl"
        out = tmp_path / f"OUT{len(options)}"
        given = ["--tokenizer", sample / "tokenizer", "--groups", 1024, "--gpus", 1, "--workers", 1, "--output", out]
        assert run(main, "pack", inputs, *given, *options).code == 0
        with pytest.raises(ConfigError, match=message):
            PackedSFTDataset(out)
