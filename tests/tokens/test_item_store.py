"""Token stores of items against their branches one by one."""

from __future__ import annotations

import itertools
import json
import uuid

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.errors import FormatError
from packer_cli.format.constants import REFERENCE_VALUES
from packer_cli.format.items import trees_of
from packer_cli.format.schema import ITEM_VALUES, RowColumns
from packer_cli.format.shards import row_of
from packer_cli.format.trees import GROUP, KINDS, PAIR, SAMPLE, TURNS, Trees, find_wrong_tree
from packer_cli.plan.core.types import Pieces
from packer_cli.remote.path import RemotePath
from packer_cli.tokens.choices import tokenized
from packer_cli.tokens.index import INDEX_NAME
from packer_cli.tokens.samples import StoreSamples
from packer_cli.tokens.store import open_store
from tests.naive import content_hash as naive_hash
from tests.naive import loss_spans as naive_spans
from tests.naive import prefix_trees as naive
from tests.remote.conftest import upload
from tests.tokens.item_stores import Item, make_item_store, stores

SHARE_FROM = 2
WHOLE = 2**31 - 1


def lists(offsets, values):
    return [values[a:b].tolist() for a, b in itertools.pairwise(offsets)]


def tree_of(item):
    return naive.make_tree([ids for ids, _ in item.branches], SHARE_FROM)


def kind_of(item):
    return SAMPLE if item.is_plain else item.kind


def pieces_of(pieces):
    """The pieces of (sample, first branch, stop branch, depth, start, length) each."""
    sample, first, stop, depth, start, length = (
        np.array([piece[k] for piece in pieces], dtype=np.int32) for k in range(6)
    )
    unused = np.zeros(len(pieces), dtype=np.int64)
    return Pieces(
        samples=sample, start=start, length=length, first_branch=first, stop_branch=stop, depth=depth,
        loss_terms=length, work=unused, path_tokens=unused,
    )  # fmt: skip


@given(parts=stores())
@settings(max_examples=60, deadline=None)
def test_what_a_plan_sees(tmp_path_factory, parts):
    store = make_item_store(tmp_path_factory.mktemp("store"), parts)
    items = [item for part in parts for batch in part for item in batch]
    masks = [[mask for _, mask in item.branches] for item in items]
    trees = [tree_of(item) for item in items]
    assert store.lengths().tolist() == [len(tree.input_ids) for tree in trees]
    loss = [sum(np.count_nonzero(mask[1:]) for mask in of_item) for of_item in masks]
    assert store.num_loss_tokens().tolist() == loss
    of_items = any(not item.is_plain for item in items)
    assert (store.index.unit == "item") == of_items
    if not of_items:
        assert not any(part["kinds"] for part in json.loads((store.folder / INDEX_NAME).read_text())["parts"])
        return
    found = store.trees()
    assert found.kinds.tolist() == [kind_of(item) for item in items]
    as_trees = [Trees(*map(np.array, tree[1:])) for tree in trees]
    segment_ends = [(each.depths() + each.lengths).tolist() for each in as_trees]
    assert lists(found.segment_offsets, found.segment_ends) == segment_ends
    assert lists(found.segment_offsets, found.segment_parents) == [tree.segment_parents for tree in trees]
    assert lists(found.branch_offsets, found.branch_segments) == [tree.branch_segments for tree in trees]
    first = [next((k for k, bit in enumerate(mask) if k and bit), WHOLE) for of_item in masks for mask in of_item]
    assert found.first_loss.tolist() == first


@given(parts=stores())
@settings(max_examples=40, deadline=None)
def test_what_the_index_counts(tmp_path_factory, parts):
    store = make_item_store(tmp_path_factory.mktemp("store"), parts)
    for part, info in zip(parts, store.index.parts, strict=True):
        items = [item for batch in part for item in batch]
        is_flat = all(item.is_plain for item in items)
        kinds = [] if is_flat else [KINDS[kind_of(item)] for item in items]
        assert info.kinds == {kind: kinds.count(kind) for kind in kinds}
        assert info.num_branches == sum(len(item.branches) for item in items)
        assert info.num_flat_tokens == sum(len(ids) for item in items for ids, _ in item.branches)


@st.composite
def pieces(draw, items):
    """Pieces of these items: some branches, cut at a depth, or a range of a sample's tokens."""
    found = []
    for sample in draw(st.lists(st.integers(0, len(items) - 1), max_size=8)):
        item = items[sample]
        if kind_of(item) == SAMPLE:
            num = len(item.branches[0][0])
            start = draw(st.integers(0, num - 1))
            found.append((sample, 0, 1, WHOLE, start, draw(st.integers(1, num - start))))
            continue
        first = draw(st.integers(0, len(item.branches) - 1))
        stop = draw(st.integers(first + 1, len(item.branches)))
        depth = draw(st.integers(1, 12) | st.just(WHOLE))
        length = len(naive.cut_tree(tree_of(item), first, stop, depth).input_ids)
        found.append((sample, first, stop, depth, 0, length))
    return found


@given(parts=stores().filter(lambda parts: any(not i.is_plain for p in parts for b in p for i in b)), data=st.data())
@settings(max_examples=60, deadline=None)
def test_pieces_are_cut_branches(tmp_path_factory, parts, data):
    store = make_item_store(tmp_path_factory.mktemp("store"), parts)
    items = [item for part in parts for batch in part for item in batch]
    cut = data.draw(pieces(items))
    columns = store.gather(pieces_of(cut), np.arange(len(cut) + 1))  # A row a piece.
    first_branch = np.cumsum([0, *(len(item.branches) for item in items)])
    for k, (sample, first, stop, depth, start, length) in enumerate(cut):
        item = items[sample]
        own = [(ids[start:][:depth], mask[start:][:depth]) for ids, mask in item.branches[first:stop]]
        if kind_of(item) == SAMPLE:
            own = [(ids[:length], mask[:length]) for ids, mask in own]
        row = row_of(columns, k)
        trees, ids = trees_of(row), row["input_ids"]
        assert find_wrong_tree(trees, length) is None
        paths = trees.paths(trees.branch_segments)
        assert lists(paths.offsets, ids[paths.values]) == [ids for ids, _ in own]
        if kind_of(item) != SAMPLE:
            piece = naive.cut_tree(tree_of(item), first, stop, depth)
            found = ids, np.diff(trees.segment_starts), trees.segment_parents, trees.branch_segments
            assert tuple(each.tolist() for each in found) == piece
        assert row["branch_roles"].tolist() == ([0] if kind_of(item) == SAMPLE else list(range(first, stop)))
        assert row["sample_ids"].tolist() == [first_branch[sample] + branch for branch in range(first, stop)]
        rewards = item.rewards[first:stop] or [np.nan] * (stop - first)
        assert np.array_equal(row["rewards"], rewards, equal_nan=True)
        for name in ITEM_VALUES:
            is_lost = name in REFERENCE_VALUES and depth < WHOLE  # It was of all tokens.
            wanted = np.nan if is_lost else item.values.get(name, np.nan)
            assert np.array_equal(row[name], [wanted], equal_nan=True)
        assert row["item_kinds"].tolist() == [kind_of(item)]
        spans = 0
        for number, (_, mask) in enumerate(own):
            mine = slice(spans, spans + row["branch_loss_spans"][number])
            weights = row["loss_weights"][mine] if "loss_weights" in row else np.ones(mine.stop - mine.start)
            found = row["loss_starts"][mine].tolist(), row["loss_stops"][mine].tolist(), weights.tolist()
            assert found == naive_spans.weighted_spans_of([0, *mask[1:]])
            spans = mine.stop
        assert (length, spans) == (len(ids), len(row["loss_starts"]))
    masks = [
        [
            bit
            for _, mask in items[s].branches[a:b]
            for bit in mask[begin:][: min(d, n if items[s].is_plain else d)][1:]
        ]
        for s, a, b, d, begin, n in cut
    ]
    assert store.loss_of(pieces_of(cut), is_weighted=False).tolist() == [*map(np.count_nonzero, masks)]
    if store.index.columns.is_weighted:
        assert store.loss_of(pieces_of(cut), is_weighted=True).tolist() == [*map(sum, masks)]


@given(parts=stores())
@settings(max_examples=40, deadline=None)
def test_hashes_are_those_of_plain_python(tmp_path_factory, parts):
    store = make_item_store(tmp_path_factory.mktemp("store"), parts)
    trees = [tree_of(item) for part in parts for batch in part for item in batch]
    assert StoreSamples(store).hashes.tolist() == [naive_hash.item_hash(*tree) for tree in trees]


PAIRS = [Item(PAIR, [([1, 2, 3, 4], [0, 0, 0, 1]), ([1, 2, 3, 5], [0, 0, 0, 1])]), Item(TURNS, [([7, 8], [0, 1])])]


def test_a_part_begins_again_where_an_item_comes_late(monkeypatch, tmp_path):
    monkeypatch.setattr("packer_cli.tokens.writer._TOKENS_PER_BATCH", 2)
    store = make_item_store(tmp_path, [[PAIRS[1:], PAIRS[:1], PAIRS[1:]]])
    table = pa.ipc.open_file((tmp_path / "part-000000-0000.arrow").read_bytes()).read_all()
    assert table.schema == RowColumns(of_items=True).part(pa.uint16())
    assert table["item_kind"].to_pylist() == [SAMPLE, PAIR, SAMPLE]
    assert table["segment_starts"].to_pylist() == [[0, 2], [0, 2, 4, 6], [0, 2]]
    assert table["loss_starts"].to_pylist() == [[1], [3, 3], [1]]
    assert table["branch_loss_spans"].to_pylist() == [[1], [1, 1], [1]]
    assert store.trees().kinds.tolist() == [SAMPLE, PAIR, SAMPLE]


@pytest.mark.parametrize(
    ("column", "values", "why"),
    [
        ("segment_parents", [-1, 1, 0], None),
        ("segment_parents", [-1, -1, 0], None),  # Not in depth-first order.
        ("segment_parents", [-1, 0, 3], None),
        ("segment_starts", [0, 2, 4, 5], None),
        ("segment_starts", [1, 2, 4, 6], None),
        ("branch_segments", [1, 1], None),
        ("branch_segments", [0, 2], None),
        ("branch_segments", [1, 9], None),
        ("branch_roles", [1, 0], None),
        ("loss_stops", [4, 5], None),
        ("branch_loss_spans", [2, 1], "its branches have other numbers of loss spans than its rows"),
        ("branch_roles", [0], "its branches have different numbers of segments, roles, loss spans and rewards"),
        ("segment_starts", [0, 2, 6], "its segments have different numbers of starts and parents"),
    ],
)
def test_damage_is_found_when_a_store_is_opened(tmp_path, column, values, why):
    make_item_store(tmp_path, [[[PAIRS[1], PAIRS[0]]]])
    path = tmp_path / "part-000000-0000.arrow"
    size = path.stat().st_size
    table = pa.ipc.open_file(path.read_bytes()).read_all()
    columns = table.to_pydict()
    columns[column][1] = values
    changed = pa.Table.from_pydict(columns, schema=table.schema).combine_chunks()
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, changed.schema) as writer:
        writer.write_table(changed)
    assert path.stat().st_size == size
    with pytest.raises(FormatError) as error:
        open_store(tmp_path)
    why = why or "the tree or the loss spans of the item of line 2 are wrong"
    assert str(error.value) == f"token store part {str(path)!r} is damaged ({why}); tokenize again"


@pytest.mark.parametrize(
    "piece", [(0, 0, 3, WHOLE, 0, 6), (0, 0, 2, WHOLE, 0, 7), (0, 1, 1, WHOLE, 0, 0), (1, 0, 1, WHOLE, 1, 2)]
)
def test_pieces_of_another_store_are_refused(tmp_path, piece):
    store = make_item_store(tmp_path, [[PAIRS]])
    with pytest.raises(FormatError) as error:
        store.gather(pieces_of([piece]), np.array([0, 1]))
    assert str(error.value) == f"token store {str(tmp_path)!r}: an item is not as planned; tokenize again"


def test_of_one_branch_turns_are_a_sample_and_a_group_is_a_group(tmp_path):
    branch = [([7, 8], [0, 1])]
    alone, group, rewarded = Item(TURNS, branch), Item(GROUP, branch), Item(GROUP, branch, rewards=[0.5])
    assert make_item_store(tmp_path, [[[alone, PAIRS[1]]]]).index.unit == "sample"
    kinds = make_item_store(tmp_path, [[[alone, group, rewarded]]]).trees().kinds
    assert kinds.tolist() == [SAMPLE, GROUP, GROUP]


def test_a_remote_store_is_fetched_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("HBPACK_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "store"
    folder.mkdir()
    near = make_item_store(folder, [[PAIRS], [PAIRS[1:]], [PAIRS]])
    url = f"memory://{uuid.uuid4().hex}"
    upload(folder, RemotePath(url))
    far = open_store(RemotePath(url))
    assert far._ranged is None
    pieces = pieces_of([(0, 1, 2, 3, 0, 3), (2, 0, 1, WHOLE, 0, 2), (3, 0, 2, WHOLE, 0, 6)])
    (ours, theirs) = (store.gather(pieces, np.array([0, 3])) for store in (far, near))
    assert ours.keys() == theirs.keys()
    for name, column in ours.items():
        np.testing.assert_array_equal(column.values, theirs[name].values, name)


def test_what_people_read_of_items(tmp_path):
    index = make_item_store(tmp_path, [[PAIRS], [PAIRS[1:]]]).index
    assert tokenized(index, 0, "1 s")[:2] == [
        "tokenized 3 records: 3 items, 10 tokens, 0 rejected (1 s)",
        "1 pair: 2 samples; sharing prefixes saves 2 of 12 tokens",
    ]
