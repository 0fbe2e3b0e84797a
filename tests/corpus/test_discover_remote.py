"""Corpora behind a URL: the same files, in the same order, as in a folder, and the same records."""

from __future__ import annotations

import gzip
import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from packer_cli.corpus.discover import discover, slice_corpus
from packer_cli.corpus.read import SliceReader
from packer_cli.errors import InputError
from packer_cli.remote.path import RemotePath

LINES = "".join(json.dumps({"text": f"Sample {number}."}) + "\n" for number in range(50)).encode()
FILES = {
    "b/x.jsonl": LINES,
    "b.d/x.jsonl": LINES,
    "b-c/x.jsonl.gz": gzip.compress(LINES, mtime=0),
    "B.md": b"A book.",
    "a.json": json.dumps([{"text": f"Element {number}."} for number in range(20)]).encode(),
    "lines.json": LINES,
    "b/empty.jsonl": b"",
    "b/.hidden.jsonl": LINES,
    ".git/x.jsonl": LINES,
    "README.md": b"About it.",
    "b/tokenizer.json": b"{}",
    "b/picture.png": b"png",
    "packed/hbpack.json": b"{}",
    "packed/tokens/part.arrow": b"x",
    "begun/tokens/.parts/started": b"",
    "begun/tokens/part.jsonl": LINES,
    "cut.parquet": b"PAR1" + bytes(40),
    "cut.arrow": b"ARROW1" + bytes(40),
    "t.ds": bytes(range(8)),
    "t.ds.index": (4).to_bytes(8, "little"),
    "m.bin": bytes(range(8)),
    "m.idx": struct.pack("<9sQBQQi3q", b"MMIDIDX", 1, 8, 1, 2, 4, 0, 0, 1),
}


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, RemotePath]:
    """The same files in a folder and in remote storage."""
    local, remote = tmp_path / "corpus", RemotePath(f"memory://discover-{time.monotonic_ns()}/corpus")
    for name, data in FILES.items():
        (local / name).parent.mkdir(parents=True, exist_ok=True)
        (local / name).write_bytes(data)
        (remote / name).write_bytes(data)
    return local, remote


@pytest.mark.parametrize(
    "name", ["", "/", "/b", "/*", "/*/*.jsonl*", "/**/*.jsonl", "/b*", "/b/x.jsonl", "/b/x.jsonl@2.0"]
)
def test_the_same_files_as_in_a_folder(places, name):
    local, remote = places

    def found(place: Any) -> list[Any]:
        sources, files = discover([f"{place}{name}"])
        return [sources[0].weight, *((f.path.removeprefix(str(place)), f.format, f.num_bytes) for f in files)]

    assert found(remote) == found(local)
    assert len(found(local)) > 1


def test_the_same_slices_and_records(places):
    def read(place: Any) -> list[Any]:
        slices = slice_corpus(discover([str(place)])[1], slice_bytes=300)
        cuts = [(s.file.fingerprint, s.start, s.stop, s.first_line, s.unreadable) for s in slices]
        return [cuts, [[(d.line, d.text) for batch in SliceReader().read(s) for d in batch.documents] for s in slices]]

    local, remote = places
    assert read(remote) == read(local)
    assert sum(bool(unreadable) for *_, unreadable in read(remote)[0]) == 2


def test_errors(places):
    _, remote = places

    def error(name: str, output: str | None = None) -> str:
        with pytest.raises(InputError) as caught:
            discover([name], output=output)
        return str(caught.value).removeprefix(f"{remote}")

    assert error(f"{remote}/none") == "/none: no such file or folder; check the address"
    assert error(f"{remote}/*.none").startswith("/*.none: no data file matches this pattern; hbpack reads ")
    assert error(f"{remote}/b/picture.png").startswith('/b/picture.png: unknown suffix ".png"; hbpack reads ')
    for name in ("packed", "packed/tokens", "begun"):
        assert error(f"{remote}/{name}") == f"/{name}: is an output of hbpack; name the data that it was made from"
    assert error(f"{remote}/b", str(remote)) == "/b: is in the output folder; name another output"
    (remote / "saved" / "dataset_info.json").write_bytes(b"{}")
    assert error(f"{remote}/saved") == (
        f"/saved: holds a data set of save_to_disk; name its Arrow files, as {remote}/saved/*.arrow"
    )


def test_what_lies_in_the_output_is_passed_over(places):
    _, remote = places
    files = discover([str(remote)], output=f"{remote}/b")[1]
    assert files
    assert not [file.path for file in files if file.path.startswith(f"{remote}/b/")]


def test_the_same_files_are_skipped(places: tuple[Path, RemotePath]) -> None:
    for place in places:
        for name, data in {"_temporary/0/x.jsonl": LINES, "b/_x.jsonl": LINES, "c.csv": b"1", "part-0": LINES}.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(data)
    for pattern in ("", "/*", "/**"):
        found = [discover([f"{place}{pattern}"]) for place in places]
        first, second = (
            {file.path.removeprefix(str(place)) for file in files}
            for place, (_, files) in zip(places, found, strict=True)
        )
        assert first == second >= {"/part-0"}
        assert not any("_" in path for path in first)
        assert found[0][0][0].skipped == found[1][0][0].skipped is not None
