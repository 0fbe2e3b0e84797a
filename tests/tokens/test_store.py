"""The token store against plain slicing."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.corpus.types import Source, TokenBatch
from packer_cli.errors import FormatError, InputError, VersionError
from packer_cli.files import atomic_file
from packer_cli.format.schema import RowColumns, token_type
from packer_cli.format.tokens import SampleOptions, TokenizerInfo
from packer_cli.plan.core.types import Pieces
from packer_cli.tokens.index import (
    INDEX_NAME,
    STORE_VERSION,
    PartFile,
    PartInfo,
    StoreIndex,
    read_index,
)
from packer_cli.tokens.input_slices import LINE_BITS
from packer_cli.tokens.store import open_store
from packer_cli.tokens.writer import PartWriter
from packer_cli.version import __version__
from tests.naive import loss_spans as naive
from tests.tokens.item_stores import totals


def encoded(samples, first_line=1):
    lengths = [len(ids) for ids, _ in samples]
    bits = [bit for _, mask in samples for bit in mask]
    return TokenBatch(
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        input_ids=np.array([token for ids, _ in samples for token in ids], dtype=np.int32),
        loss_mask=None if {*bits} == {1} else np.array(bits, dtype=np.bool_ if {*bits} <= {0, 1} else np.float32),
        lines=np.arange(first_line, first_line + len(samples)),
    )


def files_of(number, counts):
    """Two files, the first of which holds a part's first batch; the second is of the other source."""
    return tuple(
        PartFile(
            path=f"file-{number}-{i}",
            source=(number + i) % 2,
            fingerprint="",
            num_bytes=0,
            num_samples=count,
            num_rejected=0,
            num_tokens=0,
            num_loss_tokens=0,
        )
        for i, count in enumerate(counts)
    )


def make_store(folder, parts, vocab_size=100):
    """Parts of batches of samples."""
    infos = []
    for number, batches in enumerate(parts):
        name = f"part-{number:06d}-0000.arrow"
        with atomic_file(folder / name) as file:
            writer = PartWriter(file, token_type(vocab_size), num_slices=len(batches))
            for place, batch in enumerate(batches):
                if batch:
                    writer.write(encoded(batch, first_line=(place << LINE_BITS) + 1))
            writer.close()
        infos.append(
            PartInfo(
                path=name, fingerprint=str(number),
                files=files_of(number, [sum(map(len, batches[:1])), sum(map(len, batches[1:]))]),
                **totals(writer), loss_weight=writer.loss_weight,
                num_branches=writer.num_branches, num_flat_tokens=writer.num_flat_tokens,
                num_rejected=0, num_without_loss=0, num_with_special=0, num_open=0, shapes={},
                num_bytes=file.num_bytes, xxh3=file.hexdigest(), backend="tokenizers",
            )
        )  # fmt: skip
    index = StoreIndex(
        fingerprint="x", tokenizer=TokenizerInfo(vocab_size=vocab_size), options=SampleOptions(), library_versions={},
        sources=(Source(name="a", weight=1), Source(name="b", weight=1)), parts=tuple(infos),
    )  # fmt: skip
    index.write(folder)
    return open_store(folder)


@st.composite
def stores(draw):
    bit = st.sampled_from(draw(st.sampled_from([[0, 1], [0, 1, 0.5, 2.25]])))
    sample = st.lists(st.tuples(st.integers(0, 99), bit), min_size=1, max_size=9)
    as_sample = sample.map(lambda pairs: ([p[0] for p in pairs], [p[1] for p in pairs]))
    return draw(st.lists(st.lists(st.lists(as_sample, max_size=4), max_size=3), min_size=1, max_size=3))


@given(parts=stores(), vocab_size=st.sampled_from([100, 65_536, 65_537, None]), data=st.data())
@settings(max_examples=40)
def test_a_store_gives_back_what_was_written(tmp_path_factory, parts, vocab_size, data):
    store = make_store(tmp_path_factory.mktemp("store"), parts, vocab_size)
    samples = [sample for part in parts for batch in part for sample in batch]
    of_file = [
        (number, int(i > 0)) for number, part in enumerate(parts) for i, batch in enumerate(part) for _ in batch
    ]
    assert len(store) == len(samples)
    assert store.lengths().tolist() == [len(ids) for ids, _ in samples]
    assert store.num_loss_tokens().tolist() == [np.count_nonzero(mask[1:]) for _, mask in samples]
    assert store.sources().tolist() == [sum(file) % 2 for file in of_file]
    if not samples:
        return
    pieces = []
    for sample in data.draw(st.lists(st.integers(0, len(samples) - 1), max_size=8)):
        start = data.draw(st.integers(0, len(samples[sample][0]) - 1))
        pieces.append((sample, start, data.draw(st.integers(1, len(samples[sample][0]) - start))))
    sample, start, length = (np.array([p[i] for p in pieces], dtype=np.int64) for i in range(3))
    length = length.astype(np.int32)
    whole = Pieces(samples=sample, start=start, length=length)
    columns = store.gather(whole, np.array([0, len(whole)]))
    ids, starts, stops = (columns[name].values for name in ("input_ids", "loss_starts", "loss_stops"))
    weights = columns["loss_weights"].values if "loss_weights" in columns else None
    assert ids.dtype == (np.int32 if vocab_size in (65_537, None) else np.uint16)
    cut = [(samples[s][0][b : b + n], [0, *samples[s][1][b + 1 : b + n]]) for s, b, n in pieces]
    assert ids.tolist() == [token for part, _ in cut for token in part]
    is_weighted = any(bit not in (0, 1) for _, mask in samples for bit in mask[1:])
    assert store.index.columns.is_weighted == (weights is not None) == is_weighted
    values = [1.0] * len(starts) if weights is None else weights.tolist()
    bits = [bit for _, part in cut for bit in part]
    assert (starts.tolist(), stops.tolist(), values) == naive.weighted_spans_of(bits)
    assert store.loss_of(whole, is_weighted=False).tolist() == [np.count_nonzero(part) for _, part in cut]
    if is_weighted:
        assert store.loss_of(whole, is_weighted=True).tolist() == [sum(part) for _, part in cut]
    assert store.sources_of(sample).tolist() == [sum(of_file[s]) % 2 for s in sample]
    line_of = [line for part in parts for batch in part for line in range(1, len(batch) + 1)]
    rising = np.unique(sample)
    assert list(store.locate(rising)) == [("file-{}-{}".format(*of_file[s]), line_of[s]) for s in rising.tolist()]


@given(parts=stores())
@settings(max_examples=20)
def test_parts_on_disk(tmp_path_factory, parts):
    """As pyarrow reads them; a batch without a mask, which the encoder gives where all tokens are trained on, too."""
    folder = tmp_path_factory.mktemp("store")
    full = [[[(ids, [1] * len(ids)) for ids, _ in batch] for batch in part] for part in parts]
    for wanted in (parts, full):
        make_store(folder, wanted)
        for number, part in enumerate(wanted):
            table = pa.ipc.open_file((folder / f"part-{number:06d}-0000.arrow").read_bytes()).read_all()
            rows = [sample for batch in part for sample in batch]
            is_weighted = any(bit not in (0, 1) for _, mask in rows for bit in mask[1:])
            assert table.schema == RowColumns(is_weighted=is_weighted).part(pa.uint16())
            assert table["input_ids"].to_pylist() == [ids for ids, _ in rows]
            spans = [naive.weighted_spans_of([0, *mask[1:]])[: 2 + is_weighted] for _, mask in rows]
            names = ["loss_starts", "loss_stops", "loss_weights"][: 2 + is_weighted]
            assert [*zip(*(table[name].to_pylist() for name in names), strict=True)] == spans


def rewrite_part(folder, change):
    """Change the columns of the only part, as lists of rows, and leave its number of bytes as it was."""
    path = folder / "part-000000-0000.arrow"
    before = path.read_bytes()
    table = pa.ipc.open_file(before).read_all()
    columns = table.to_pydict()
    change(columns)
    changed = pa.Table.from_pydict(columns, schema=table.schema).combine_chunks()
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, changed.schema) as writer:
        writer.write_table(changed)
    assert path.stat().st_size == len(before)


@pytest.mark.parametrize(
    ("column", "row", "values"),
    [
        ("loss_starts", 1, [0, 4]),  # The first token of a sample.
        ("loss_starts", 1, [-1, 4]),
        ("loss_starts", 1, [2, 4]),  # Nothing between start and stop.
        ("loss_starts", 1, [1, 2]),  # It touches the span before.
        ("loss_starts", 1, [4, 1]),
        ("loss_stops", 1, [2, 7]),  # Past the sample.
        ("loss_stops", 1, [5, 5]),
    ],
)
def test_damaged_spans_are_found_when_a_store_is_opened(tmp_path, column, row, values):
    make_store(tmp_path, [[[([7], [1]), ([1, 2, 3, 4, 5, 6], [0, 1, 0, 0, 1, 1]), ([8, 9], [0, 1])]]])

    def change(columns):
        assert (columns["loss_starts"][1], columns["loss_stops"][1]) == ([1, 4], [2, 6])
        columns[column][row] = values

    rewrite_part(tmp_path, change)
    with pytest.raises(FormatError) as error:
        open_store(tmp_path)
    assert str(error.value) == (
        f"token store part {str(tmp_path / 'part-000000-0000.arrow')!r} is damaged (the loss spans of the sample of "
        "line 2 are wrong); tokenize again"
    )


def says(**facts):
    """Have `tokens.json` say something else of the only part."""

    def change(folder):
        index = read_index(folder)
        part = index.parts[0]
        file = replace(part.files[0], num_samples=facts.get("num_samples", part.num_samples))
        part = replace(part, files=(file,), **facts)
        replace(index, parts=(part,)).write(folder)

    return change


def holds(**columns):
    """Have the only part hold other columns."""
    return lambda folder: rewrite_part(folder, lambda before: before.update(columns))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (holds(num_loss_tokens=[2, 0]), "the loss spans of the sample of line 1 are wrong"),
        (holds(loss_stops=[[], [2]]), "its loss spans have different numbers of starts, stops and weights"),
        (holds(loss_weights=[[], [0.5]]), "its loss spans have different numbers of starts, stops and weights"),
        (says(loss_weight=None), "it has other columns"),
        (says(num_samples=3), "it does not hold its 3 samples"),
        (says(num_bytes=1), "it has N bytes instead of 1"),
        (says(path="gone.arrow"), None),
    ],
)
def test_damage_is_named(tmp_path, change, why):
    make_store(tmp_path, [[[([1, 2], [0, 0.5]), ([1, 2], [0, 0])]]])
    change(tmp_path)
    with pytest.raises(FormatError) as error:
        open_store(tmp_path)
    (part,) = read_index(tmp_path).parts
    found = re.sub(r"has \d+ bytes", "has N bytes", str(error.value))
    fault = f"damaged ({why})" if why else "missing"
    assert found == f"token store part {str(tmp_path / part.path)!r} is {fault}; tokenize again"


def test_a_store_of_another_version(tmp_path):
    make_store(tmp_path, [[[([1, 2], [0, 1])]]])
    path = tmp_path / INDEX_NAME
    path.write_bytes(path.read_bytes().replace(f'"format_version": {STORE_VERSION}'.encode(), b'"format_version": 2'))
    with pytest.raises(VersionError) as error:
        open_store(tmp_path)
    assert str(error.value) == (
        f"{str(path)!r} has format hbpack-tokens version 2; hbpack {__version__} reads hbpack-tokens "
        f"version {STORE_VERSION}; run hbpack pack or hbpack tokenize again"
    )


def test_a_folder_without_a_store(tmp_path):
    with pytest.raises(InputError) as error:
        open_store(tmp_path)
    assert str(error.value) == f"{str(tmp_path)!r} holds no token store (no tokens.json); run hbpack tokenize"


def test_a_piece_that_reaches_past_its_sample_is_refused(tmp_path):
    store = make_store(tmp_path, [[[([1, 2], [0, 1]), ([3], [1])]]])
    sample, start, length = (np.array([number], dtype=np.int32) for number in (0, 1, 2))
    piece = Pieces(samples=sample, start=start, length=length)
    with pytest.raises(FormatError) as error:
        store.gather(piece, np.array([0, 1]))
    assert str(error.value) == f"token store {str(tmp_path)!r}: a sample is shorter than planned; tokenize again"
