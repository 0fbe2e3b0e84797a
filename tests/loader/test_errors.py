"""Every message, whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from packer_cli import __version__
from packer_cli.epochs import MAX_EPOCH
from packer_cli.errors import ConfigError, FormatError
from packer_cli.loader import PackedDataset


def message(kind: type[Exception], path: Path, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(kind) as error:
        PackedDataset(path, *(args or (0, 2)), **kwargs)
    assert error.type is kind
    return str(error.value)


def test_arguments(own_set: Any) -> None:
    path = own_set.path
    assert message(ConfigError, path, 0, 8) == (
        f"{str(path)!r} was planned for 2 GPUs and world_size is 8: "
        "run hbpack rebalance --gpus 8, or plan again with --gpus 8"
    )
    assert message(ValueError, path, 2, 2) == "rank is 2: it must be from 0 to 1"
    assert message(ValueError, path, -1, 2) == "rank is -1: it must be from 0 to 1"
    assert message(ValueError, path, 0, 2, -1) == "epoch is -1: it must not be negative"
    assert message(ValueError, path, format="nemo") == (
        "unknown batch format 'nemo': "
        "choose one of deepspeed, flash-attn, megatron, megatron-thd, torchtitan, torchtune, transformers"
    )
    assert message(ValueError, path, sp_sharding="ring") == (
        "sp_sharding is 'ring': choose one of contiguous, zigzag, document, planned"
    )
    assert message(ValueError, path, pad_to="max") == "pad_to is 'max': choose one of multiple, row, capacity"
    assert message(ValueError, path, pad_to_multiple_of=0) == "pad_to_multiple_of is 0: it must be at least 1"
    assert message(ValueError, path, pad_token_id=-1) == "pad_token_id is -1: it must not be negative"
    assert message(ValueError, path, cache_bytes=-1) == "cache_bytes is -1: it must not be negative"
    assert message(ValueError, path, prefetch=-1) == "prefetch is -1: it must not be negative"


def test_text_and_fractions_are_no_numbers(own_set: Any) -> None:
    path = own_set.path
    assert message(TypeError, path, "0", 2) == "rank is '0': it must be an integer; write int(os.environ['RANK'])"
    assert message(TypeError, path, 0, "2") == (
        "world_size is '2': it must be an integer; write int(os.environ['WORLD_SIZE'])"
    )
    assert message(TypeError, path, None, 2) == "rank is None: it must be an integer"
    assert message(TypeError, path, 0, 2, "1") == "epoch is '1': it must be an integer; write int('1')"
    assert message(TypeError, path, pad_to_multiple_of="8") == (
        "pad_to_multiple_of is '8': it must be an integer; write int('8')"
    )
    assert message(TypeError, path, pad_token_id=1.0) == "pad_token_id is 1.0: it must be an integer"
    assert message(TypeError, path, cache_bytes="64GiB") == (
        "cache_bytes is '64GiB': it must be an integer; write 64 * 2**30"
    )
    assert message(TypeError, path, prefetch="2") == "prefetch is '2': it must be an integer; write int('2')"
    ds = PackedDataset(path, 0, 2)
    for call in (ds.set_epoch, ds.state_dict, ds.iter_from, ds.step_of):
        name = "epoch" if call == ds.set_epoch else "iteration"
        with pytest.raises(TypeError, match=rf"^{name} is 1\.5: it must be an integer$"):
            call(1.5)
        with pytest.raises(TypeError, match=rf"^{name} is 'x': it must be an integer; write int\('x'\)$"):
            call("x")


@pytest.mark.parametrize("kind", [np.int32, np.uint8, torch.tensor])
def test_integers_of_numpy_and_torch_are_numbers(own_set: Any, kind: Any) -> None:
    ds = PackedDataset(own_set.path, kind(1), kind(2), kind(1), pad_to_multiple_of=kind(8), pad_token_id=kind(5))
    assert (ds.rank, ds.world_size, ds.epoch) == (1, 2, 1)
    assert ds[kind(3)]["iteration"] == 3
    ds.set_epoch(kind(2))
    state = ds.state_dict(kind(4))
    assert json.loads(json.dumps(state)) == state
    assert (state["epoch"], state["iteration"]) == (2, 4)
    assert next(ds.iter_from(kind(4)))["step"] == ds.step_of(kind(4)) == state["step"]


def test_the_greatest_epoch(own_set: Any) -> None:
    ds = PackedDataset(own_set.path, 0, 2, MAX_EPOCH)
    assert [batch["epoch"] for batch in ds] == [MAX_EPOCH] * len(ds)
    for epoch in (2**31, 2**63, 10**20):
        expected = f"epoch is {epoch}: it must be at most 2147483647"
        assert message(ValueError, own_set.path, 0, 2, epoch) == expected
        with pytest.raises(ValueError, match=f"^{expected}$"):
            ds.set_epoch(epoch)
    assert ds.epoch == MAX_EPOCH


def test_folders_that_are_no_packed_set(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    assert message(FormatError, nowhere) == (
        f"{str(nowhere)!r} is not a folder: name the OUT folder that hbpack pack wrote"
    )
    assert message(FormatError, tmp_path) == (
        f"{str(tmp_path)!r} holds no hbpack.json, so it is no packed set or an unfinished one; run hbpack pack (again)"
    )
    file = tmp_path / "hbpack.json"
    file.write_text("{")
    assert message(FormatError, tmp_path) == (
        f"{str(file)!r} is not JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1)); "
        "run hbpack pack again"
    )
    file.write_text('{"format": "other"}')
    assert message(FormatError, tmp_path) == (
        f'{str(file)!r} is not the manifest of a packed set (no "format": "hbpack")'
    )


def test_manifests(own_set: Any) -> None:
    file = own_set.path / "hbpack.json"
    own_set.edit_manifest(format_version=2)
    assert message(FormatError, own_set.path) == (
        f"{str(file)!r} has format version 2; hbpack {__version__} reads version 1: "
        "read it with the release that wrote it, or run hbpack pack again"
    )
    own_set.edit_manifest(format_version=1, epochs=[])
    assert message(FormatError, own_set.path) == f"{str(file)!r} lists no epochs; run hbpack pack again"
    own_set.edit_manifest(epochs=..., seed=...)
    assert message(FormatError, own_set.path) == f"{str(file)!r} lacks seed, epochs; run hbpack pack again"


def test_rank_manifests(own_set: Any) -> None:
    file = own_set.path / "ranks/epoch-000/rank-00000.arrow"
    with pa.OSFile(str(file)) as source:
        table = pa.ipc.open_file(source).read_all()
    damage = f"{str(file)!r} is damaged or incomplete; run hbpack pack again"

    def rewrite(changed: pa.Table) -> str:
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, changed.schema) as writer:
            writer.write_table(changed)
        return message(FormatError, own_set.path)

    def with_column(name: str, values: list[int]) -> pa.Table:
        place = table.column_names.index(name)
        return table.set_column(place, table.schema.field(name), pa.array(values, table.schema.field(name).type))

    n = table.num_rows
    epochs = json.loads((own_set.path / "hbpack.json").read_text())["epochs"]
    num_steps = epochs[0]["num_steps"]
    assert n > 3
    for number in (num_steps - 1, num_steps + 1):
        own_set.edit_manifest(epochs=[{**epochs[0], "num_steps": number}, *epochs[1:]])
        assert message(FormatError, own_set.path) == f"{damage} (its steps are not 0 to {number - 1} in order)"
    own_set.edit_manifest(epochs=epochs)
    assert rewrite(table.slice(0, n - 1).combine_chunks()) == (f"{damage} ({n - 1} iterations, hbpack.json says {n})")
    assert rewrite(with_column("iteration", [0] * n)) == f"{damage} (its iterations are not 0, 1, 2, ...)"
    wrong_steps = f"{damage} (its steps are not 0 to {num_steps - 1} in order)"
    assert rewrite(with_column("step", [0] * n)) == wrong_steps
    assert rewrite(with_column("step", list(range(n, 0, -1)))) == wrong_steps
    assert rewrite(table.drop_columns("group")).startswith(damage)
    file.write_bytes(file.read_bytes()[:100])
    assert message(FormatError, own_set.path).startswith(damage)
    file.unlink()
    assert message(FormatError, own_set.path).startswith(damage)


def read_error(packed: Any) -> str:
    ds = PackedDataset(packed.path, 0, 2)
    with pytest.raises(FormatError) as error:
        ds[0]
    return str(error.value)


def test_shards(own_set: Any) -> None:
    shard = own_set.path / "shards/g0-32-sp1/shard-00000.arrow"
    data = shard.read_bytes()
    start, end = f"shard {str(shard)!r} is damaged or incomplete (", "); run hbpack pack again"
    shard.write_bytes(data[:-8])
    n = len(data)
    assert read_error(own_set) == f"{start}{n - 8} bytes, hbpack.json says {n}{end}"
    shard.write_bytes(b"x" * n)
    assert read_error(own_set) == f"{start}Not an Arrow file{end}"
    shard.unlink()
    assert read_error(own_set) == f"{start}[Errno 2] No such file or directory: {str(shard)!r}{end}"
    own_set.edit_manifest(groups=[{"name": "g0", "capacity": 32, "shards": []}])
    assert read_error(own_set) == (
        "hbpack.json lists no shard 0 of group 0, which a rank manifest names; run hbpack pack again"
    )


def test_shards_of_another_shape(own_set: Any) -> None:
    shard = own_set.path / "shards/g0-32-sp1/shard-00000.arrow"
    groups = json.loads((own_set.path / "hbpack.json").read_text())["groups"]
    with pa.OSFile(str(shard)) as source:
        table = pa.ipc.open_file(source).read_all()

    def rewrite(changed: pa.Table) -> str:
        with pa.OSFile(str(shard), "wb") as sink, pa.ipc.new_file(sink, changed.schema) as writer:
            writer.write_table(changed.combine_chunks())
        groups[0]["shards"][0]["num_bytes"] = shard.stat().st_size
        own_set.edit_manifest(groups=groups)
        ds = PackedDataset(own_set.path, 0, 2)
        with pytest.raises(FormatError) as error:
            list(ds)
        return str(error.value)

    start, end = f"shard {str(shard)!r} is damaged or incomplete (", "); run hbpack pack again"
    assert rewrite(table.drop_columns("cu_seqlens")) == f"{start}it lacks columns{end}"
    assert rewrite(table.slice(0, 1)).startswith(f"{start}no row ")


def test_out_of_range(own_set: Any) -> None:
    ds = PackedDataset(own_set.path, 0, 2)
    n = len(ds)
    with pytest.raises(IndexError, match=f"^iteration {n} of {n}$"):
        ds[n]
    with pytest.raises(ValueError, match=f"^iteration is {n + 1}: it must be from 0 to {n}$"):
        ds.iter_from(n + 1)
    with pytest.raises(ValueError, match=f"^iteration is -1: it must be from 0 to {n}$"):
        ds.step_of(-1)
