"""Every message, whole."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from packer_cli import __version__
from packer_cli.errors import ConfigError, FormatError, VersionError
from packer_cli.format.epochs import MAX_EPOCH
from packer_cli.loader import PackedDataset
from tests.loader.packed_set import SHARD_SCHEMA, write_manifest, write_set

REMEDY = "run hbpack write, which rewrites damaged files"


def message(kind: type[Exception], path: Path, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(kind) as error:
        PackedDataset(path, *(args or (0, 2)), **kwargs)
    assert error.type is kind
    return str(error.value)


def test_arguments(own_set: Any) -> None:
    path = own_set.path
    assert message(ConfigError, path, 0, 8) == (
        f"{str(path)!r} was planned for 2 GPUs, but world_size is 8: "
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
    assert message(ConfigError, path, pad_token_id=-1) == (
        "pad_token_id is -1: it must be in the tokenizer's vocabulary, 0 to 999; give another pad_token_id"
    )
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
        f"{str(tmp_path)!r} holds no hbpack.json, so it is not a packed set, or not a finished one; run hbpack pack"
    )
    file = tmp_path / "hbpack.json"
    file.write_text("{")
    assert message(FormatError, tmp_path) == (
        f"{str(file)!r} is not JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1)); "
        "run hbpack write, which rewrites damaged files"
    )
    file.write_text('{"format": "other"}')
    assert message(FormatError, tmp_path) == (
        f'{str(file)!r} is not the manifest of a packed set (no "format": "hbpack")'
    )


def test_manifests(own_set: Any) -> None:
    file = own_set.path / "hbpack.json"
    start, end = re.escape(f"{str(file)!r} is damaged ("), re.escape(f"); {REMEDY}")
    own_set.edit_manifest(format_version=1)
    assert message(VersionError, own_set.path) == (
        f"{str(file)!r} has format version 1; hbpack {__version__} reads version 2; "
        "run hbpack pack again, or read the set with the release that wrote it"
    )
    own_set.edit_manifest(format_version=2)
    data = file.read_bytes()
    assert len(PackedDataset(own_set.path, 0, 2)) > 3
    file.write_bytes(data.replace(b'"seed": 17', b'"seed": 16'))
    found = re.fullmatch(rf"{start}its checksum is (\w+), it says (\w+){end}", message(FormatError, own_set.path))
    assert found
    assert found[2] == json.loads(data)["xxh3"] != found[1]
    assert len(PackedDataset(own_set.path, 0, 2, verify="none")) > 3
    file.write_text(json.dumps(json.loads(data)))
    assert re.fullmatch(
        f"{start}it does not end with its checksum, so an earlier release wrote it, or it was changed{end}",
        message(FormatError, own_set.path),
    )


def with_value(value: Any, *keys: Any) -> Any:
    """What changes `manifest[keys[0]][keys[1]]...`; `...` removes it."""

    def change(manifest: Any) -> None:
        *path, last = keys
        for key in path:
            manifest = manifest[key]
        if value is ...:
            del manifest[last]
        else:
            manifest[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (with_value([], "epochs"), "it lists no epochs"),
        (with_value(..., "seed"), "it lacks seed"),
        (with_value("17", "seed"), "seed is '17', not an integer"),
        (with_value(True, "num_gpus"), "num_gpus is True, not an integer"),
        (with_value({"a": 1}, "groups"), "groups is {'a': 1}, not a list"),
        (with_value([7], "groups"), "groups[0] is 7, not an object"),
        (with_value(1, "more"), "it has 'more', which this release does not know"),
        (
            with_value(1, "groups", 0, "shards", 0, "size"),
            "it has 'groups[0].shards[0].size', which this release does not know",
        ),
        (with_value(-1, "epochs", 0, "num_steps"), "epochs[0].num_steps is -1, below 0"),
        (with_value("a", "counts", "samples"), "counts.samples is 'a', not an integer"),
        (with_value("a", "metrics", "overall", "abr"), "metrics.overall.abr is 'a', not a number"),
        (with_value(..., "config", "write", "shard_size"), "it lacks config.write.shard_size"),
        (with_value(0, "groups", 0, "capacity"), "a group has no capacity or no degree"),
        (with_value(1.5, "groups", 0, "sp_size"), "groups[0].sp_size is 1.5, not an integer"),
        (with_value(None, "fingerprint"), "fingerprint is None, not text"),
        (with_value("x", "first_epoch"), "first_epoch is 'x', not an integer"),
        (with_value("x" * 99, "history"), f"history is '{'x' * 56}..., not a list"),
        (with_value("2", "tokenizer", "pad_token_id"), "tokenizer.pad_token_id is '2', not an integer"),
        *(
            (
                with_value([{"first": a, "last": b, "xxh3": "0" * 32} for a, b in ranks], "epochs", 0, "ranks"),
                "the ranks of ranks/epoch-000 are not 0 to 1, each once",
            )
            for ranks in ([], [(0, 0)], [(0, 2)], [(1, 1), (0, 0)], [(0, 1), (1, 1)], [(0, 10**12)])
        ),
        (
            with_value("../victim", "groups", 0, "shards", 0, "xxh3"),
            "groups[0].shards[0].xxh3 is '../victim', not an xxh3-128 in hex",
        ),
        *(
            (
                with_value(path, "groups", 0, "shards", 0, "path"),
                f"groups[0].shards[0].path is {path!r}, not a path inside the set's folder",
            )
            for path in ("../x", "/etc/passwd", "shards/../../x", "a//b", "./a", "a\\b", "", "a\0b")
        ),
        (
            with_value("ranks/../..", "epochs", 0, "path"),
            "epochs[0].path is 'ranks/../..', not a path inside the set's folder",
        ),
    ],
)
@pytest.mark.parametrize("verify", ["lazy", "none"])
def test_hostile_manifests(own_set: Any, change: Any, why: str, verify: Any) -> None:
    file = own_set.path / "hbpack.json"
    manifest = json.loads(file.read_text())
    change(manifest)
    write_manifest(file, manifest)
    assert message(FormatError, own_set.path, verify=verify) == f"{str(file)!r} is damaged ({why}); {REMEDY}"


@pytest.mark.parametrize("kind", ["shards", "ranks", "file"])
def test_links_that_lead_out(own_set: Any, tmp_path: Path, kind: str) -> None:
    path = own_set.path / ("shards/g0-32-sp1/shard-00000.arrow" if kind == "file" else kind)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FormatError, match=r"is a link to '.*elsewhere.*', outside the set's folder; copy the file"):
        list(PackedDataset(own_set.path, 0, 2))


def test_a_manifest_that_is_a_folder(own_set: Any) -> None:
    file = own_set.path / "hbpack.json"
    file.unlink()
    file.mkdir()
    text = message(FormatError, own_set.path)
    assert text.startswith(f"{str(file)!r} cannot be read (Expected file path, but ")
    assert text.endswith(f" is a directory); {REMEDY}")


@pytest.mark.parametrize("name", ["hbpack.json", "ranks/epoch-000/rank-00000.arrow", "shards"])
def test_links_in_a_circle(own_set: Any, name: str) -> None:
    path = own_set.path / name
    path.rename(own_set.path / "before")
    path.symlink_to(path)
    with pytest.raises(FormatError, match=r"Too many levels of symbolic links"):
        list(PackedDataset(own_set.path, 0, 2))


def test_links_inside_the_set_and_to_it(own_set: Any, tmp_path: Path) -> None:
    (own_set.path / "shards").rename(own_set.path / "real")
    (own_set.path / "shards").symlink_to("real")
    (tmp_path / "link").symlink_to(own_set.path)
    assert len(list(PackedDataset(tmp_path / "link", 0, 2))) > 3


def test_pad_tokens_are_in_the_vocabulary(own_set: Any) -> None:
    own_set.edit_manifest(tokenizer={"vocab_size": 1000, "pad_token_id": 1, "eos_token_id": 2})
    assert len(PackedDataset(own_set.path, 0, 2, pad_token_id=999)) > 3
    for token in (-1, 1000, 10**20):
        assert message(ConfigError, own_set.path, pad_token_id=token) == (
            f"pad_token_id is {token}: it must be in the tokenizer's vocabulary, 0 to 999; give another pad_token_id"
        )
    own_set.edit_manifest(tokenizer={"pad_token_id": 1})
    assert message(ConfigError, own_set.path, pad_token_id=-1) == (
        "pad_token_id is -1: it must not be negative; give another pad_token_id"
    )
    own_set.edit_manifest(tokenizer={"vocab_size": 1000, "pad_token_id": 1000})
    assert "pad_token_id is 1000" in message(ConfigError, own_set.path)


def test_a_set_without_a_whole_epoch_has_none_to_repeat(own_set: Any) -> None:
    epochs = json.loads((own_set.path / "hbpack.json").read_text())["epochs"]
    own_set.edit_manifest(epochs=[{**epochs[0], "first_step": 1}])
    assert len(PackedDataset(own_set.path, 0, 2)) > 3
    assert message(ConfigError, own_set.path, 0, 2, 1) == (
        "epoch 1 would repeat a whole epoch, and this set holds none; choose one that it holds"
    )


def with_column(table: pa.Table, name: str, values: list[int]) -> pa.Table:
    place = table.column_names.index(name)
    return table.set_column(place, table.schema.field(name), pa.array(values, table.schema.field(name).type))


def test_what_ranks_have_in_common(own_set: Any) -> None:
    name = "ranks/epoch-000/iterations.arrow"
    file = own_set.path / name
    whole = file.read_bytes()
    table = pa.ipc.open_file(whole).read_all()
    start, end = f"{str(file)!r} is damaged or incomplete (", f"); {REMEDY}"

    def rewrite(changed: pa.Table) -> str:
        own_set.rewrite(name, changed)
        return message(FormatError, own_set.path)

    n = table.num_rows
    epochs = json.loads((own_set.path / "hbpack.json").read_text())["epochs"]
    num_steps = epochs[0]["num_steps"]
    for number in (num_steps - 1, num_steps + 1):
        own_set.edit_manifest(epochs=[{**epochs[0], "num_steps": number}, *epochs[1:]])
        assert message(FormatError, own_set.path) == f"{start}its steps are not 0 to {number - 1} in order{end}"
    own_set.edit_manifest(epochs=epochs)
    assert rewrite(table.slice(0, n - 1).combine_chunks()) == f"{start}{n - 1} iterations, hbpack.json says {n}{end}"
    wrong_steps = f"{start}its steps are not 0 to {num_steps - 1} in order{end}"
    assert rewrite(with_column(table, "step", [0] * n)) == wrong_steps
    assert rewrite(with_column(table, "step", list(range(n, 0, -1)))) == wrong_steps
    assert rewrite(table.drop_columns("step")) == f"{start}it has other columns{end}"
    own_set.rewrite(name, table)
    assert file.read_bytes() == whole
    file.unlink()
    assert message(FormatError, own_set.path).startswith(start)


def test_rank_manifests(own_set: Any) -> None:
    name = "ranks/epoch-000/rank-00000.arrow"
    file = own_set.path / name
    whole = file.read_bytes()
    table = pa.ipc.open_file(whole).read_all()
    start, end = f"{str(file)!r} is damaged or incomplete (", f"); {REMEDY}"

    def rewrite(changed: pa.Table) -> str:
        own_set.rewrite(name, changed)
        return message(FormatError, own_set.path)

    n = table.num_rows
    packs, group = table["pack"].to_pylist(), table["group"].to_pylist()
    assert n > 3
    wrong_iterations = f"{start}its iterations are not 0 to {n - 1} in order{end}"
    assert rewrite(table.slice(0, n - 1).combine_chunks()) == wrong_iterations
    assert rewrite(with_column(table, "iteration", [0] * n)) == wrong_iterations
    for pack in (10**6, -2):
        wrong_packs = f"{start}it names packs that the set does not have{end}"
        assert rewrite(with_column(table, "pack", [pack, *packs[1:]])) == wrong_packs
    for number in (99, -1):
        wrong_groups = f"{start}it names groups that the set does not have{end}"
        assert rewrite(with_column(table, "group", [number, *group[1:]])) == wrong_groups
    assert rewrite(with_column(table, "group", [1 - g for g in group])).startswith(start)
    assert rewrite(with_column(table, "first_gpu", [1] * n)) == (
        f"{start}rank 0 has no part in some of its iterations{end}"
    )
    assert rewrite(table.drop_columns("group")) == f"{start}it has other columns{end}"
    own_set.rewrite(name, table)
    assert file.read_bytes() == whole
    file.write_bytes((own_set.path / "ranks/epoch-000/rank-00001.arrow").read_bytes())
    assert message(FormatError, own_set.path) == f"{start}it is a copy of ranks/epoch-000/rank-00001.arrow{end}"
    assert message(FormatError, own_set.path, verify="none") == (
        f"{start}it is a copy of ranks/epoch-000/rank-00001.arrow{end}"
    )
    other = write_set(own_set.path.parent / "other", [(32, 1, 20)], num_gpus=2, num_epochs=1, fingerprint="fp-1")
    file.write_bytes((other.path / name).read_bytes())
    assert message(FormatError, own_set.path) == f"{start}it is of another set, fp-1, and not of fp-0{end}"
    file.write_bytes(whole[:100])
    assert message(FormatError, own_set.path).startswith(start)
    file.unlink()
    assert message(FormatError, own_set.path).startswith(start)


def read_error(packed: Any) -> str:
    ds = PackedDataset(packed.path, 0, 2)
    with pytest.raises(FormatError) as error:
        ds[0]
    return str(error.value)


def test_shards(own_set: Any) -> None:
    shard = own_set.path / "shards/g0-32-sp1/shard-00000.arrow"
    data = shard.read_bytes()
    start, end = f"shard {str(shard)!r} is damaged or incomplete (", f"); {REMEDY}"
    shard.write_bytes(data[:-8])
    n = len(data)
    assert read_error(own_set) == f"{start}{n - 8} bytes, hbpack.json says {n}{end}"
    shard.write_bytes(b"x" * n)
    assert read_error(own_set) == f"{start}Not an Arrow file{end}"
    other = write_set(own_set.path.parent / "other", [(32, 1, 20)], num_gpus=2, num_epochs=1, fingerprint="fp-1")
    shard.write_bytes((other.path / "shards/g0-32-sp1/shard-00000.arrow").read_bytes())
    assert read_error(own_set) == f"{start}it is of another set, fp-1, and not of fp-0{end}"
    shard.unlink()
    assert read_error(own_set) == f"{start}[Errno 2] No such file or directory: {str(shard)!r}{end}"
    groups = json.loads((own_set.path / "hbpack.json").read_text())["groups"]
    own_set.edit_manifest(groups=[{**groups[0], "shards": []}])
    rank = own_set.path / "ranks/epoch-000/rank-00000.arrow"
    assert message(FormatError, own_set.path) == (
        f"{str(rank)!r} is damaged or incomplete (it names packs that the set does not have); {REMEDY}"
    )


def test_shards_whose_schema_is_damaged(own_set: Any) -> None:
    """One bit of a column's name, or of its type: in Arrow's metadata integers are type 2, booleans type 6."""
    shard = own_set.path / "shards/g0-32-sp1/shard-00000.arrow"
    data = shard.read_bytes()
    footer = len(data) - 10 - int.from_bytes(data[-10:-6], "little")
    wanted = PackedDataset(own_set.path, 0, 2)[0]["input_ids"]
    flips = [(data.index(name.encode(), footer), 128) for name in SHARD_SCHEMA.names]
    flips += [(at, 4) for at in range(footer, len(data)) if data[at] == 2]
    reasons = set()
    for at, bit in flips:
        shard.write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
        try:
            assert torch.equal(PackedDataset(own_set.path, 0, 2)[0]["input_ids"], wanted)
        except FormatError as error:
            reasons.add(str(error).partition("incomplete (")[2])
    assert any(reason.startswith("'utf-8' codec can't decode byte ") for reason in reasons)
    assert any(re.match(r"row \d+ cannot be read: its column group is bool\)", reason) for reason in reasons)


def test_shards_of_another_shape(own_set: Any) -> None:
    name = "shards/g0-32-sp1/shard-00000.arrow"
    shard = own_set.path / name
    table = pa.ipc.open_file(shard.read_bytes()).read_all()

    def rewrite(changed: pa.Table) -> str:
        own_set.rewrite(name, changed)
        ds = PackedDataset(own_set.path, 0, 2)
        with pytest.raises(FormatError) as error:
            list(ds)
        return str(error.value)

    start, end = f"shard {str(shard)!r} is damaged or incomplete (", f"); {REMEDY}"
    assert rewrite(table.drop_columns("cu_seqlens")) == f"{start}it lacks columns{end}"
    assert rewrite(table.drop_columns("checksum")) == f"{start}it lacks columns{end}"
    assert rewrite(table.slice(0, 1)).startswith(f"{start}no row ")
    first, second = table.slice(0, 1), table.slice(1, 1)
    assert rewrite(pa.concat_tables([second, first, table.slice(2)])).startswith(f"{start}row ")


def test_out_of_range(own_set: Any) -> None:
    ds = PackedDataset(own_set.path, 0, 2)
    n = len(ds)
    with pytest.raises(IndexError, match=f"^iteration {n} of {n}$"):
        ds[n]
    with pytest.raises(ValueError, match=f"^iteration is {n + 1}: it must be from 0 to {n}$"):
        ds.iter_from(n + 1)
    with pytest.raises(ValueError, match=f"^iteration is -1: it must be from 0 to {n}$"):
        ds.step_of(-1)
