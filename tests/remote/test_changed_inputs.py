"""Objects that are replaced while they are read."""

from __future__ import annotations

import pytest

from packer_cli.corpus.discover import discover, slice_corpus
from packer_cli.corpus.read import SliceReader
from packer_cli.corpus.readers.base import ReadRules
from packer_cli.errors import RunError
from packer_cli.remote.path import RemotePath

LINES = b"".join(b'{"text": "%05d %s"}\n' % (number, b"lorem " * 20) for number in range(20_000))


def test_an_open_object_stays_the_version_it_was(bucket: RemotePath):
    path = bucket / "a.jsonl"
    path.write_bytes(LINES)
    with path.open_ranges(goes_forward=True) as file:
        assert file.read(10) == LINES[:10]
        path.write_bytes(LINES[::-1])
        with pytest.raises(RunError) as caught:
            file.readall()
    assert str(caught.value) == f"{path}: the object was replaced while it was read; run again"


@pytest.mark.parametrize("suffix", ["jsonl", "npy"])
def test_a_replaced_object_is_an_error(bucket: RemotePath, suffix: str):
    path = bucket / f"a.{suffix}"
    path.write_bytes(LINES)
    reader = SliceReader(rules=ReadRules(vocab_size=1 << 17, eos_id=10))
    files = discover([str(path)])[1]
    slices = slice_corpus(files, slice_bytes=1_500_000)
    assert len(slices) > 1
    list(reader.read(slices[0]))
    path.write_bytes(LINES[150:] + LINES[:150])
    with pytest.raises(RunError) as caught:
        list(reader.read(slices[1]))
    assert str(caught.value) == (
        f"{path}: the file has changed since the run began; run again once nothing writes to it"
    )
    path.write_bytes(LINES)  # The same bytes once more, as another version.
    list(reader.read(slices[1]))
