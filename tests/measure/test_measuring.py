"""What `hbpack profile` measures, and how."""

from __future__ import annotations

import pytest

from tests.measure.tiny import TINY

torch = pytest.importorskip("torch")


def test_segments_compute_attention():
    """Samples with as many keys as queries, or more, against the plain formula."""
    from packer_cli.measure.kernels import Segments, sdpa

    torch.manual_seed(0)
    queries, keys = (261, 3, 128), (261, 40, 384)
    q, k, v = (
        torch.randn(sum(sizes), heads, 8, dtype=torch.float64, requires_grad=True)
        for sizes, heads in ((queries, 4), (keys, 2), (keys, 2))
    )
    found = sdpa(q, k, v, Segments(queries, keys, torch.device("cpu")))
    outputs = []
    for one, all_keys, values in zip(q.split(queries), k.split(keys), v.split(keys), strict=True):
        scores = torch.einsum("qhd,khd->hqk", one, all_keys.repeat_interleave(2, dim=1)) / 8**0.5
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(scores.shape[2] - scores.shape[1] + 1)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, values.repeat_interleave(2, dim=1)))
    wanted = torch.cat(outputs)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad(x.square().sum(), (q, k, v), retain_graph=True) for x in (found, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)


def test_rows_are_timed_in_rounds(config, monkeypatch):
    """Two warm-up rounds and three that count, each row once a round, in one order."""
    from packer_cli.config.profile_options import ProfileConfig
    from packer_cli.measure import run as measuring
    from packer_cli.measure.run import measure_profile
    from packer_cli.measure.subject import Subject

    monkeypatch.setattr(measuring, "measure_attention", lambda *_: [])
    ran, run_row = [], Subject.run

    def recorded(self, samples, checkpoint_layers, group=None):
        ran.append((sum(samples), len(samples)))
        run_row(self, samples, checkpoint_layers, group)

    monkeypatch.setattr(Subject, "run", recorded)
    options = {"model": str(config), "modelling": "plain", "device": "cpu", "checkpoint_layers": (0,)}
    threads = torch.get_num_threads()
    profile = measure_profile(ProfileConfig(**options, lengths=(32, 64), samples=(1, 2), repeats=3))
    assert ran[-20:] == 5 * [(32, 1), (32, 2), (64, 1), (64, 2)]
    assert all(row.seconds > 0 for row in profile.iterations)
    assert torch.get_num_threads() == threads


def test_pieces_of_a_sample_compute_its_attention():
    """The last queries of a sample, forward and backward, against the whole sample's."""
    from packer_cli.measure.kernels import Segments, sdpa

    torch.manual_seed(0)
    row = [torch.randn(150, heads, 8, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)]
    device = torch.device("cpu")
    whole = sdpa(*row, Segments((100, 50), (100, 50), device))
    for stop in (1, 7, 100):
        for start in (0, stop // 2, stop - 1):
            samples = Segments((stop - start, 50), (stop, 50), device)
            parts = [torch.cat((x[a:stop], x[100:])) for x, a in zip(row, (start, 0, 0), strict=True)]
            found, wanted = sdpa(*parts, samples), torch.cat((whole[start:stop], whole[100:]))
            torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
            gradients = [torch.autograd.grad(x.square().sum(), row, retain_graph=True) for x in (found, wanted)]
            torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)


def test_a_slow_device_measures_fewer_pieces(monkeypatch):
    from packer_cli.cost.shape import shape_of
    from packer_cli.measure import kernels
    from packer_cli.measure.device import Device
    from packer_cli.measure.kernels import sdpa

    def measured(work_per_second):
        monkeypatch.setattr(kernels, "piece_seconds", lambda *args: sum(args[3]) * args[4][0] / work_per_second)
        return [(row.queries, row.keys) for row in kernels.measure_attention(*arguments, 10_000, 1)]

    arguments = Device("cpu"), sdpa, shape_of(TINY)
    assert measured(1e12)[-1] == (4096, 10_000)
    assert [piece for piece in measured(2e7) if piece[1] == 10_000] == [(q, 10_000) for q in (1, 16, 64, 128, 256)]


def test_the_fewest_layers_that_fit_are_found(config, monkeypatch):
    """For limits just at and below the peaks that are counted with each number of layers."""
    from packer_cli.config.profile_options import ProfileConfig
    from packer_cli.measure import run as measuring
    from packer_cli.measure.run import measure_profile

    monkeypatch.setattr(measuring, "measure_attention", lambda *_: [])
    options = {"model": str(config), "modelling": "plain", "lengths": (96,), "device": "cpu", "repeats": 1,
               "warm_up": 0, "samples": (1,)}  # fmt: skip
    all_of_them = measure_profile(ProfileConfig(**options, checkpoint_layers=(0, 1, 2, 3)))
    added = all_of_them.assumed["constant_bytes_added"]
    peaks = [row.memory_bytes for row in all_of_them.iterations]
    assert peaks == sorted(peaks, reverse=True)
    for layers in range(4):
        profile = measure_profile(ProfileConfig(**options, memory=peaks[layers] + added + 1))
        ran = [row.checkpoint_layers for row in profile.iterations if row.seconds]
        assert ran == sorted({layers, 3})
        assert all(row.out_of_memory == (row.checkpoint_layers < layers) for row in profile.iterations)
    nothing = measure_profile(ProfileConfig(**options, memory=peaks[3] + added - 1))
    assert [(row.seconds, row.out_of_memory) for row in nothing.iterations] == [(None, True)]


def test_chunked_logits_are_the_same_loss_in_less_memory(config):
    from packer_cli.cost.shape import shape_of
    from packer_cli.measure.device import LiveBytes
    from packer_cli.measure.kernels import RowAttention, sdpa
    from packer_cli.measure.subject import PlainDecoder

    attention = RowAttention(sdpa)
    attention.set((100, 28), None, torch.device("cpu"))
    ids, positions = torch.arange(128) % 100, torch.cat([torch.arange(100), torch.arange(28)])
    found = []
    for chunk in (0, 24):
        torch.manual_seed(0)
        model = PlainDecoder(shape_of({**TINY, "vocab_size": 3000}), attention, chunk).double()
        with LiveBytes() as live:
            loss = model(ids, positions, ids)
            loss.backward()
        found.append((float(loss.detach()), model.embedding.weight.grad, live.peak))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-6)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-5, atol=1e-6)
    assert found[1][2] < 0.7 * found[0][2]
