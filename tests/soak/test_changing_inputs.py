"""Inputs that change at random moments: a run that succeeds has read one version of them, all of it, once.

Each record says in its token ids which file, record and version it is of, so a token store tells what was read.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packer_cli.remote.path import RemotePath
from packer_cli.tokens.store import open_store
from tests.cli_runner import HBPACK
from tests.s3_server import s3_server

Version = dict[str, tuple[int, int]]
"""Of each file: the version of its records, and how many there are."""
NAMES = {"a.jsonl": 150, "b.parquet": 150, "c.arrow": 40, "d.jsonl.gz": 40, "e.json": 150, "f.jsonl": 9, "g.jsonl": 9}
"""Files and their records; those of 150 have several slices."""
PADDING = "x" * 60_000
"""Makes slices of few records, in a field that nobody reads."""


def records(file: int, version: int, number: int, pad: str) -> list[dict[str, Any]]:
    """Records whose order depends on the version, so that a mixture of two repeats some and lacks others."""
    order = list(range(number))
    random.Random(version).shuffle(order)
    return [{"input_ids": [3, 100 + file, 100 + version, 100 + row], "of_no_use": pad} for row in order]


def content(name: str, version: int, number: int) -> bytes:
    rows = records([*NAMES].index(name), version, number, PADDING if number > 100 else "x")
    if name.endswith(".json"):
        return json.dumps(rows).encode()
    if name.endswith((".jsonl", ".gz")):
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        return gzip.compress(lines, 1, mtime=0) if name.endswith(".gz") else lines
    table, sink = pa.Table.from_pylist(rows), pa.BufferOutputStream()
    if name.endswith(".parquet"):
        pq.write_table(table, sink, row_group_size=15, use_dictionary=False, compression="none")
    else:
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=10)
    return sink.getvalue().to_pybytes()


class Corpus:
    """A folder, or a prefix of a bucket, whose files change; and every version that it has had."""

    def __init__(self, place: Any, rng: random.Random) -> None:
        self.place = place
        self._rng = rng
        self._made = 0
        self.versions: list[Version] = [{}]
        for name in NAMES:
            self._put(name, NAMES[name], self._write)
        del self.versions[:-1]

    def change(self) -> None:
        """Another version of a file: mostly of the same size, replaced or rewritten in place."""
        name = self._rng.choice([*NAMES])
        number = NAMES[name] - self._rng.choice((0, 0, 0, 1))
        way = self._write if isinstance(self.place, RemotePath) else self._rng.choice((self._write, self._replace))
        self._put(name, number, way)

    def _put(self, name: str, number: int, put: Callable[[str, bytes], None]) -> None:
        self._made += 1
        data = content(name, self._made, number)
        put(name, data)
        self.versions.append({**self.versions[-1], name: (self._made, number)})

    def _write(self, name: str, data: bytes) -> None:
        (self.place / name).write_bytes(data)

    def _replace(self, name: str, data: bytes) -> None:
        path = self.place / name
        old = path.stat()
        other = path.with_name(".other")
        other.write_bytes(data)
        if self._rng.random() < 0.5:  # As `cp -p` and `rsync -t` do, of a file of the same age.
            os.utime(other, ns=(old.st_atime_ns, old.st_mtime_ns))
        other.rename(path)


def expected(version: Version) -> Counter[tuple[int, int, int]]:
    return Counter(
        ([*NAMES].index(name), made, row) for name, (made, number) in version.items() for row in range(number)
    )


def read(out: Path) -> Counter[tuple[int, int, int]]:
    store = open_store(out / "tokens")
    found: Counter[tuple[int, int, int]] = Counter()
    for part in store.index.parts:
        with pa.memory_map(str(out / "tokens" / part.path)) as source:
            for ids in pa.ipc.open_file(source).read_all()["input_ids"].to_pylist():
                found[ids[1] - 100, ids[2] - 100, ids[3] - 100] += 1
    return found


class Runs:
    """Runs commands while the corpus changes."""

    seconds = 2.5
    """About as long as a command takes: the last one."""

    def __init__(self, repo: Path, rng: random.Random, corpus: Corpus) -> None:
        self._tokenizer = str(repo / "examples" / "sample" / "tokenizer")
        self._rng = rng
        self._corpus = corpus

    def run(self, *words: object, changes: int) -> int:
        process = subprocess.Popen([*HBPACK, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        begin = time.monotonic()
        for moment in sorted(self._rng.uniform(0, self.seconds) for _ in range(changes)):
            time.sleep(max(0.0, begin + moment - time.monotonic()))
            self._corpus.change()
        _, error = process.communicate()
        Runs.seconds = time.monotonic() - begin
        assert b"Traceback" not in error, error.decode()
        assert process.returncode in (0, 1, 2), error.decode()
        assert process.returncode == 0 or b"error: " in error
        return process.returncode

    def tokenize(self, out: Path, *more: object, changes: int) -> int:
        words = (self._corpus.place, "--tokenizer", self._tokenizer, "--output", out, "--workers", 2, *more)
        return self.run("tokenize", *words, changes=changes)


def ordinary(runs: Runs, rng: random.Random, corpus: Corpus, out: Path) -> int:
    if rng.random() < 0.3:
        runs.tokenize(out, changes=0)  # So the next one finds parts to keep.
        del corpus.unchanged[:-1]
    return runs.tokenize(out, changes=rng.randint(1, 3))


def array(runs: Runs, rng: random.Random, corpus: Corpus, out: Path) -> int:
    codes = []
    for index in range(3):
        codes.append(runs.tokenize(out, "--shard", f"{index}/3", changes=int(rng.random() < 0.25)))
        if rng.random() < 0.25:
            corpus.change()
    return max(codes)


def append(runs: Runs, rng: random.Random, corpus: Corpus, out: Path) -> int:
    """An append may fail, and the set is then as it was; one that succeeds has the old version of the old inputs."""
    plan = ("--groups", "1k:1", "--gpus", 2, "--workers", 2)
    new = out.parent / f"{out.name}-new.jsonl"
    new.write_text(json.dumps({"input_ids": [3, 100 + len(NAMES), 100, 100]}) + "\n")
    words = ("--tokenizer", runs._tokenizer, "--output", out, *plan)
    assert runs.run("pack", corpus.place, *words, changes=0) == 0
    del corpus.unchanged[:-1]
    if rng.random() < 0.5:
        corpus.change()
    code = runs.run("append", out, new, "--workers", 2, changes=int(rng.random() < 0.5))
    store = read(out)
    assert store.pop((len(NAMES), 0, 0), 0) == (code == 0)
    assert store == expected(corpus.unchanged[0])
    return 1  # Checked.


def ray(runs: Runs, rng: random.Random, corpus: Corpus, out: Path) -> int:
    return runs.tokenize(out, "--engine", "ray", changes=rng.randint(1, 3))


NUMBERS = {ordinary: 25, array: 10, append: 10, ray: 6}
"""Runs of each way for one block of seeds."""
BLOCKS = [(way, block) for way, count in {ordinary: 4, array: 4, append: 3, ray: 1}.items() for block in range(count)]


@pytest.fixture(scope="module")
def bucket() -> Iterator[RemotePath]:
    import fsspec

    from packer_cli.engine.processes import end_servers

    with ExitStack() as stack:
        server = stack.enter_context(s3_server())
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in server.environment.items():
            patch.setenv(name, value)
        end_servers()
        fsspec.filesystem("s3", endpoint_url=server.url, key="key", secret="secret").mkdir("changing")
        yield RemotePath("s3://changing")


@pytest.mark.soak
@pytest.mark.parametrize(("way", "block"), BLOCKS)
def test_what_succeeds_has_read_one_version(repo, tmp_path, way, block):
    if way is ray:
        pytest.importorskip("ray")
    succeeded = 0
    for seed in range(NUMBERS[way]):
        rng = random.Random(f"{way.__name__} {block} {seed}")
        place = tmp_path / f"corpus-{seed}"
        place.mkdir()
        corpus = Corpus(place, rng)
        succeeded += _check(repo, rng, corpus, way, tmp_path / f"out-{seed}")
        shutil.rmtree(place)
    assert way in (append, ray) or succeeded  # Else nothing was tested.


@pytest.mark.soak
@pytest.mark.parametrize(("way", "number"), [(ordinary, 16), (array, 8)])
def test_what_succeeds_has_read_one_version_of_objects(repo, tmp_path, bucket, way, number):
    for seed in range(number):
        rng = random.Random(f"objects {way.__name__} {seed}")
        corpus = Corpus(bucket / f"{way.__name__}-{seed}", rng)
        _check(repo, rng, corpus, way, tmp_path / f"out-{seed}")


def _check(repo: Path, rng: random.Random, corpus: Corpus, way: Callable[..., int], out: Path) -> bool:
    """Whether the way succeeded; its store then holds what the corpus has been at one moment."""
    runs = Runs(repo, rng, corpus)
    if way(runs, rng, corpus, out) != 0:
        if way is not append and rng.random() < 0.3:  # Nothing writes any more, so running again is the remedy.
            assert runs.tokenize(out, "--shard", "0/1", changes=0) == 0
            assert read(out) == expected(corpus.unchanged[-1])
        return False
    store = read(out)
    assert any(store == expected(version) for version in corpus.unchanged), (store, corpus.unchanged)
    return True
