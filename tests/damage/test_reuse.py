"""What a run finds from an earlier one is reused only with the bytes that it was written with."""

from __future__ import annotations

import shutil

import pytest
import xxhash

from packer_cli.engine.sink import WrittenFile
from packer_cli.format.checksums import file_checksum
from packer_cli.shards.plan_file import read_plan
from tests.cli_runner import pack_words
from tests.damage.conftest import hbpack
from tests.reference import home, tree


@pytest.fixture(scope="module")
def arguments(repo):
    return [*pack_words(repo, "chats.jsonl", "journals.jsonl"), "--shard-size", "128KiB", "--output"]


@pytest.fixture(scope="module")
def packed(arguments, tmp_path_factory):
    out = tmp_path_factory.mktemp("packed") / "out"
    done = hbpack(*arguments, out)
    assert done.code == 0, done.stderr
    return out


def flip(path, at, bit=1):
    data = bytearray(path.read_bytes())
    data[at] ^= bit
    path.write_bytes(data)


def times(folder, pattern):
    return {path: path.stat().st_mtime_ns for path in folder.glob(pattern)}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("command", ["pack", "write"])
def test_a_changed_shard_is_written_again_and_no_other(arguments, packed, tmp_path, command, workers):
    out = shutil.copytree(packed, tmp_path / "out", symlinks=True)
    shard = sorted(home(out).glob("shards/*/*.arrow"))[1]
    flip(shard, shard.stat().st_size // 2)
    before = times(home(out), "shards/*/*.arrow")
    assert len(before) > 3
    words = [*arguments, out] if command == "pack" else ["write", out, "--shard-size", "128KiB"]
    done = hbpack(*words, "--workers", workers)
    assert done.code == 0, done.stderr
    assert done.stderr.endswith("rewrote 1 damaged file; the others are up to date\n")
    assert tree(out) == tree(packed)
    after = times(home(out), "shards/*/*.arrow")
    assert [path for path in before if after[path] != before[path]] == [shard]


def test_a_changed_token_part_is_tokenized_again(arguments, packed, tmp_path):
    out = shutil.copytree(packed, tmp_path / "out", symlinks=True)
    parts = sorted(out.glob("tokens/part-*.arrow"))
    flip(parts[0], parts[0].stat().st_size // 2)
    before = times(out, "**/*.arrow")
    done = hbpack(*arguments, out)
    assert done.code == 0, done.stderr
    assert tree(out) == tree(packed)
    after = times(out, "**/*.arrow")
    assert [path for path in before if after[path] != before[path]] == [parts[0]]


def test_a_rank_manifest_that_is_gone_is_written_again_and_no_shard(arguments, packed, tmp_path):
    out = shutil.copytree(packed, tmp_path / "out", symlinks=True)
    (home(out) / "ranks" / "epoch-000" / "rank-00003.arrow").unlink()
    before = times(home(out), "shards/*/*.arrow")
    assert hbpack(*arguments, out).code == 0
    assert tree(out) == tree(packed)
    assert times(home(out), "shards/*/*.arrow") == before


@pytest.mark.parametrize("command", ["pack", "rebalance"])
def test_a_plan_with_another_length_is_not_believed(arguments, packed, tmp_path, command):
    """One flipped bit makes a piece a token shorter or longer: a valid plan, of other pieces."""
    out = shutil.copytree(packed, tmp_path / "out", symlinks=True)
    path = (out if command == "pack" else home(out)) / "plan.arrow"
    lengths = read_plan(path)[0].pieces.length.tobytes()
    flip(path, path.read_bytes().find(lengths) + 10 * 4, 1)
    words = [*arguments, out] if command == "pack" else ["rebalance", out, "--gpus", "4"]
    done = hbpack(*words)
    if command == "pack":
        assert done.code == 0, done.stderr
        assert tree(out) == tree(packed)
    else:
        assert done.code == 1
        assert f"'{path}' is damaged (its checksum is " in done.stderr


def test_checksums(tmp_path):
    path = tmp_path / "file"
    for size in (0, 1, 2**20, 2**20 + 1, 3 * 2**20):
        data = bytes(number % 251 for number in range(size))
        path.write_bytes(data)
        xxh3 = xxhash.xxh3_128_hexdigest(data)
        assert file_checksum(path) == xxh3
        assert WrittenFile(path="file", num_bytes=size, xxh3=xxh3).is_intact(path)
        assert not WrittenFile(path="file", num_bytes=size + 1, xxh3=xxh3).is_intact(path)
        assert not WrittenFile(path="file", num_bytes=size, xxh3=xxhash.xxh3_128_hexdigest(data + b"x")).is_intact(
            path
        )
    assert not WrittenFile(path="absent", num_bytes=0, xxh3="").is_intact(tmp_path / "absent")
