"""Every message about `hbpack.json`, whole."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from packer_cli.errors import ConfigError, FormatError, VersionError
from packer_cli.loader import PackedDataset
from packer_cli.version import __version__
from tests.loader.errors.messages import REMEDY, message
from tests.loader.packed_set import write_manifest


def test_folders_that_are_no_packed_set(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    assert message(FormatError, nowhere) == (
        f"{str(nowhere)!r} is not a folder: name the OUT folder that hbpack pack wrote"
    )
    assert message(FormatError, tmp_path) == (
        f"{str(tmp_path)!r} holds no hbpack.json, so it is not a packed set, or not a finished one; run hbpack pack"
    )
    plan = tmp_path / "plan.arrow"
    plan.touch()
    assert message(FormatError, tmp_path).endswith(f"; run hbpack write {tmp_path}")
    plan.unlink()
    file = tmp_path / "hbpack.json"
    file.write_text("{")
    assert message(FormatError, tmp_path) == (
        f"{str(file)!r} is not JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1)); "
        "run hbpack write, which writes it again"
    )
    file.write_text('{"format": "other"}')
    assert message(FormatError, tmp_path) == (
        f'{str(file)!r} is not the manifest of a packed set (no "format": "hbpack"); name another folder'
    )


def test_manifests(own_set: Any) -> None:
    file = own_set.path / "hbpack.json"
    start, end = re.escape(f"{str(file)!r} is damaged ("), re.escape(f"); {REMEDY}")
    own_set.edit_manifest(format_version=1)
    assert message(VersionError, own_set.path) == (
        f"{str(file)!r} has format version 1; hbpack {__version__} reads version 3; "
        "run hbpack pack again, or read the set with the release that wrote it"
    )
    own_set.edit_manifest(format_version=None)
    assert message(FormatError, own_set.path) == f"{str(file)!r} is damaged (it has no format version); {REMEDY}"
    own_set.edit_manifest(format_version=3)
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
        (
            with_value([{"sp_size": 2, "cp_size": 1, "tp_size": 1, "pp_size": 1, "first_gpus": [1]}], "replicas"),
            "a replica of 2 GPUs ends after GPU 1",
        ),
        (with_value(0, "groups", 0, "align"), "a group aligns samples to less than a token"),
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
