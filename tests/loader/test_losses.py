"""The normalizers: over any layout of ranks, iterations and slices, a step's losses add up to the formulas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.loader import PackedDataset, metadata_of
from packer_cli.loader.losses import (
    sample_mean,
    sample_weights,
    stable_loss,
    token_losses,
    token_mean,
)
from packer_cli.loader.parallel import local_indices

samples = st.tuples(st.integers(1, 12), st.integers(0, 12))  # tokens, loss tokens (clipped)
packs = st.lists(samples, min_size=0, max_size=4)  # none: a filler
# Iterations of a step: a degree for each, and a pack for each slot of 4 GPUs.
steps = st.lists(
    st.sampled_from([1, 2, 4]).flatmap(
        lambda sp: st.tuples(st.just(sp), st.lists(packs, min_size=4 // sp, max_size=4 // sp))
    ),
    min_size=1,
    max_size=4,
)


def lay_out(step: Any, sharding: Any, seed: int) -> tuple[list[list[tuple[torch.Tensor, dict[str, Any]]]], list[Any]]:
    """Each rank's (losses, metadata) by iteration, and each pack's samples as (losses, loss tokens)."""
    rng = torch.Generator().manual_seed(seed)
    iterations: list[list[Any]] = []
    dealt: list[list[tuple[torch.Tensor, int]]] = []
    for sp_size, slots in step:
        iterations.append([])
        for dp_rank, pack in enumerate(slots):
            row, borders, counts, contents = [torch.zeros(0)], [0], [], []
            for num_tokens, wanted in pack:
                num_loss_tokens = min(wanted, num_tokens - 1)
                losses = torch.zeros(num_tokens, dtype=torch.float64)
                # At the predicting token, so never at the last one.
                losses[:num_loss_tokens] = torch.rand(num_loss_tokens, generator=rng, dtype=torch.float64) * 9 + 0.1
                row.append(losses)
                borders.append(borders[-1] + num_tokens)
                counts.append(num_loss_tokens)
                contents.append((losses.sum(), num_loss_tokens))
            tail = -borders[-1] % (2 * sp_size) or (2 * sp_size if not pack else 0)
            if tail:
                row.append(torch.zeros(tail))
                borders.append(borders[-1] + tail)
            dealt.append(contents)
            for sp_rank in range(sp_size):
                known = {
                    "cu_seqlens": torch.tensor(borders, dtype=torch.int32),
                    "sample_num_loss_tokens": torch.tensor(counts, dtype=torch.int64),
                    "num_loss_tokens": sum(counts), "sp_size": sp_size, "sp_rank": sp_rank, "sp_sharding": sharding,
                    "cp_size": 1, "cp_rank": 0,
                    "dp_rank": dp_rank, "dp_size": len(slots), "pack_id": len(dealt) - 1,
                }  # fmt: skip
                places = torch.from_numpy(local_indices(borders, sp_size, sp_rank, sharding))
                iterations[-1].append((torch.cat(row)[places], known))
    everything = [sample for pack in dealt for sample in pack]
    for _, known in (x for iteration in iterations for x in iteration):
        known["global_num_packs"] = sum(bool(pack) for pack in dealt)
        known["global_num_samples"] = len(everything)
        known["global_num_loss_tokens"] = sum(n for _, n in everything)
    return iterations, dealt


def average(iterations: Any, loss: Any, accumulation: int) -> float:
    """What a trainer makes of it: the mean over ranks, each the sum over its iterations / accumulation."""
    ranks = [sum(float(loss(*iteration[rank])) / accumulation for iteration in iterations) for rank in range(4)]
    return sum(ranks) / 4


def ratio(total: float, count: int) -> float:
    return total / count if count else 0.0


@settings(max_examples=60, deadline=None)
@given(
    step=steps,
    sharding=st.sampled_from(["contiguous", "zigzag", "document"]),
    divides=st.booleans(),
    seed=st.integers(0, 99),
)
def test_each_normalizer_is_its_formula(step: Any, sharding: Any, divides: bool, seed: int) -> None:
    iterations, dealt = lay_out(step, sharding, seed)
    # Either the trainer divides by the number of iterations, as many do, or it just adds up.
    accumulation = len(iterations) if divides else 1
    how = {"world_size": 4, "accumulation": accumulation}
    everything = [sample for pack in dealt for sample in pack]

    found = average(iterations, lambda x, b: stable_loss(x.sum(), b, **how), accumulation)
    total = sum(float(loss) for loss, _ in everything)
    assert found == pytest.approx(ratio(total, sum(n for _, n in everything)), rel=1e-12)

    found = average(iterations, lambda x, b: sample_mean(x, b, **how), accumulation)
    mean = ratio(sum(ratio(float(loss), n) for loss, n in everything), len(everything))
    assert found == pytest.approx(mean, rel=1e-12)

    found = average(iterations, lambda x, b: token_mean(x.sum(), b, **how), accumulation)
    means = [ratio(sum(float(loss) for loss, _ in pack), sum(n for _, n in pack)) for pack in dealt if pack]
    assert found == pytest.approx(ratio(sum(means), len(means)), rel=1e-12)


@settings(max_examples=20, deadline=None)
@given(step=steps, seed=st.integers(0, 99))
def test_the_stable_loss_is_hbps_where_ranks_have_as_many_samples(step: Any, seed: int) -> None:
    """loss / (B_l * T_ave) with each rank's own B_l, in one iteration of degree 1 with equal numbers of samples."""
    pack = next((pack for _, slots in step for pack in slots if pack), [(3, 2)])
    iterations, dealt = lay_out([(1, [pack] * 4)], "contiguous", seed)
    num_loss_tokens = sum(n for samples_ in dealt for _, n in samples_)
    if num_loss_tokens == 0:
        return
    t_ave = num_loss_tokens / (4 * len(pack))
    for losses, known in iterations[0]:
        hbp = float(losses.sum()) / (len(pack) * t_ave)
        assert float(stable_loss(losses.sum(), known, world_size=4)) == pytest.approx(hbp, rel=1e-12)


def test_the_layout_moves_the_token_mean_only() -> None:
    """Two ranks, one with a short answer: the same samples the other way round."""
    one, other = [(9, 8), (9, 8)], [(9, 1), (9, 1)]
    mixed = [(9, 8), (9, 1)]
    found = []
    for left, right in ((one, other), (mixed, mixed)):
        iterations, _ = lay_out([(1, [left, right, [], []])], "contiguous", 0)
        for losses, _ in iterations[0]:
            # A loss of 1 a token in long answers, of 3 in short ones, wherever they lie.
            losses[(losses > 0)] = 1.0
        for i, pack in enumerate((left, right)):
            for j, (_, n) in enumerate(pack):
                if n == 1:
                    iterations[0][i][0][9 * j] = 3.0
        each = (
            average(iterations, lambda x, b: stable_loss(x.sum(), b, world_size=4), 1),
            average(iterations, lambda x, b: sample_mean(x, b, world_size=4), 1),
            average(iterations, lambda x, b: token_mean(x.sum(), b, world_size=4), 1),
        )
        found.append(each)
    assert found[0][:2] == pytest.approx(found[1][:2])
    assert found[0][:2] == pytest.approx(((16 + 6) / 18, 2.0))
    assert found[0][2] == pytest.approx((1 + 3) / 2)
    assert found[1][2] == pytest.approx(11 / 9)


def test_a_rank_without_loss_tokens_gives_zero_and_keeps_its_graph() -> None:
    iterations, _ = lay_out([(1, [[], [(4, 0)], [(5, 2)], []])], "contiguous", 0)
    for rank in (0, 1, 3):
        _, known = iterations[0][rank]
        logits = torch.randn(1, int(known["cu_seqlens"][-1]), 7, requires_grad=True)
        losses = token_losses(logits, torch.full(logits.shape[:2], -100))
        for loss in (
            stable_loss(losses.sum(), known, world_size=4),
            token_mean(losses.sum(), known, world_size=4),
            sample_mean(losses, known, world_size=4),
        ):
            assert loss.item() == 0
            (grad,) = torch.autograd.grad(loss, logits, retain_graph=True)
            assert (grad == 0).all()


def test_a_step_without_loss_tokens_is_zero() -> None:
    iterations, _ = lay_out([(2, [[(4, 0)], []])], "zigzag", 0)
    for losses, known in iterations[0]:
        assert stable_loss(losses.sum(), known, world_size=4).item() == 0
        assert sample_mean(losses, known, world_size=4).item() == 0


@pytest.mark.parametrize("name", ["transformers", "deepspeed", "torchtitan", "megatron"])
@pytest.mark.parametrize("sp_slice", [True, False])
def test_real_batches_carry_what_the_losses_need(packed: Any, name: str, sp_slice: bool) -> None:
    """With a loss of 1 at each loss token both means of a step are 1 (less the samples that have none)."""
    ranks = [PackedDataset(packed.path, r, 4, format=name, sp_slice=sp_slice) for r in range(4)]
    stable: dict[int, float] = {}
    mean: dict[int, float] = {}
    trained: dict[int, int] = {}
    counts: dict[int, int] = {}
    for batches in zip(*ranks, strict=True):
        for batch in batches:
            known = metadata_of(batch)
            if name == "torchtitan":
                labels = batch[1]
            elif "shift_labels" in batch:
                labels = batch["shift_labels"]
            else:
                labels = batch["labels"]
                if name == "transformers":
                    labels = torch.nn.functional.pad(labels, (0, 1), value=-100)[..., 1:]
            if not sp_slice and known["sp_rank"]:
                continue  # one of the ranks that hold the same row
            losses = (labels.flatten() != -100).double()
            assert known["step"] == metadata_of(batches[0])["step"]
            step = known["step"]
            stable[step] = stable.get(step, 0) + stable_loss(losses.sum(), batch, world_size=1).item()
            mean[step] = mean.get(step, 0) + sample_mean(losses, batch, world_size=1).item()
            if known["sp_rank"] == 0:
                trained[step] = trained.get(step, 0) + int((known["sample_num_loss_tokens"] > 0).sum())
                counts[step] = known["global_num_samples"]
    assert len(stable) > 5
    for step, value in stable.items():
        assert value == pytest.approx(1 if trained[step] else 0)
        assert mean[step] == pytest.approx(trained[step] / max(1, counts[step]))


def test_token_losses() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(1, 6, 5), torch.tensor([[1, -100, 4, 0, -100, 2]])
    found = token_losses(logits.bfloat16(), labels)
    assert found.dtype == torch.float32
    wanted = -torch.log_softmax(logits.bfloat16().float(), -1)[0, torch.arange(6), labels[0].clamp(min=0)]
    assert torch.allclose(found, wanted * (labels[0] != -100))
    assert token_losses(logits.double(), labels).dtype == torch.float64


def test_losses_of_another_number_of_tokens(packed: Any) -> None:
    batch = PackedDataset(packed.path, 0, 4)[0]
    length = int(batch["cu_seq_lens_q"][-1])
    ranks = batch["cp_size"] * batch["sp_size"]
    with pytest.raises(ValueError) as error:
        sample_weights(batch, length + 1)
    assert str(error.value) == (
        f"{length + 1} losses for a row of {length} tokens shared by {ranks} ranks: give one per token, "
        f"{length // ranks} for a slice or {length} for the row"
    )
