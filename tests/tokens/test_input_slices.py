"""Which slices share a part, and that nothing of where a record is from is lost by it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packer_cli.commands.tokenize import CorpusStore, run_tokenize
from packer_cli.config import TokenizeConfig
from packer_cli.corpus.discover import discover
from packer_cli.corpus.types import CorpusFile
from packer_cli.engine.local import LocalEngine
from packer_cli.engine.output import make_whole
from packer_cli.errors import InputError
from packer_cli.tokens.index import StoreIndex, read_index
from packer_cli.tokens.input_slices import GROUP_BYTES, GROUP_FILES, cut_units, list_units
from packer_cli.tokens.store import open_store
from tests.reference import tree

MIB = 1 << 20


def listing(*sizes: int, **fields: str) -> list[CorpusFile]:
    return [
        CorpusFile(source_id=0, path=f"{number}", num_bytes=size, **{"format": "jsonl", **fields})
        for number, size in enumerate(sizes)
    ]


def write_files(folder: Path, names: str) -> None:
    """Files of a record each, no two of which share a part."""
    for name in names:
        record = {"text": f"text {name}", "of_no_use": " " * (GROUP_BYTES * 2 // 3)}
        (folder / f"{name}.jsonl").write_text(json.dumps(record) + "\n")


@pytest.mark.parametrize(
    ("files", "units"),
    [
        (listing(10, 20, 30), [3]),
        (listing(2 * MIB, 2 * MIB, 1), [2, 1]),
        (listing(GROUP_BYTES, 1), [1, 1]),
        (listing(1, GROUP_BYTES + 1, 1, 1), [1, 1, 2]),
        (listing(MIB, MIB), [2]),
        (listing(MIB, MIB, compression="gzip"), [1, 1]),
        (listing(MIB // 8, MIB // 8, compression="gzip"), [2]),
        (listing(MIB, MIB, format="parquet"), [1, 1]),
        (listing(0, 0), [2]),
        ([], []),
    ],
)
def test_small_files_that_follow_each_other_share_a_part(files: list[CorpusFile], units: list[int]) -> None:
    listed = list_units(files)
    assert [len(unit.files) for unit in listed] == units
    assert [file for unit in listed for file in unit.files] == files
    assert [unit.number for unit in listed] == [sum(units[:i]) for i in range(len(units))]
    assert [unit.is_shared for unit in listed] == [
        all(size.num_bytes <= GROUP_BYTES // (8 if size.compression == "gzip" or size.format == "parquet" else 1)
            for size in unit.files) for unit in listed
    ]  # fmt: skip
    assert [unit.start for unit in listed] == [0, *(unit.stop for unit in listed)][: len(listed)]


@pytest.mark.parametrize("size", [100, 5000, MIB // 3])
def test_files_that_come_or_go_move_no_border_behind_them(size: int) -> None:
    """But the nearest ones, however equal the files are."""
    files = listing(*[size] * 20_000)
    for changed in (files[1:], [*files[:50], *listing(7, 9), *files[50:]]):
        before, after = ({unit.files for unit in list_units(each)} for each in (files, changed))
        assert len(before) > 5
        assert len(before - after) <= 8
        assert max(len(group) for group in after) <= GROUP_FILES
        assert all(sum(file.num_bytes for file in group) <= GROUP_BYTES for group in after)


def test_a_part_is_found_again_wherever_it_stands(
    tmp_path: Path, repo: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of it is written again, whatever comes before it or goes; the store is that of a first run."""
    write_files(tmp_path, "abcd")
    (tmp_path / "e.jsonl").write_bytes((tmp_path / "c.jsonl").read_bytes())
    tokenizer = str(repo / "examples" / "sample" / "tokenizer")

    def store(names: str, output: str = "out") -> tuple[Path, StoreIndex]:
        inputs = tuple(str(tmp_path / f"{name}.jsonl") for name in names)
        config = TokenizeConfig(inputs=inputs, tokenizer=tokenizer)
        with LocalEngine(1) as engine:
            index = make_whole(CorpusStore(config, tmp_path / output), engine)
        return tmp_path / output / "tokens", index

    caplog.set_level("INFO", "hbpack")
    folder, index = store("bc")
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("part-*")}
    for names, made in (("abc", "tokenized 1 record and reused 2"), ("bdc", "tokenized 1 record and reused 2"),
                        ("cb", "reused 2 tokenized records"), ("ce", "reused 2 tokenized records")):  # fmt: skip
        caplog.clear()
        folder, index = store(names)
        assert made in caplog.text
        assert all(path.stat().st_mtime_ns == time for path, time in kept.items() if path.exists())
        assert [[Path(file.path).stem for file in part.files] for part in index.parts] == [[name] for name in names]
        fresh, _ = store(names, names)
        assert tree(folder) == tree(fresh)
    assert len({part.path for part in index.parts}) == 1, "two inputs that are equal share a file"
    assert open_store(folder, index).lengths().tolist() == [open_store(folder, index).lengths()[0]] * 2


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_store_holds_until_another_is_whole(tmp_path: Path, repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a run has made other parts of all inputs when it ends."""
    write_files(tmp_path, "ab")
    tokenizer = str(repo / "examples" / "sample" / "tokenizer")
    config = TokenizeConfig(inputs=tuple(str(tmp_path / f"{name}.jsonl") for name in "ab"), tokenizer=tokenizer)
    store = tmp_path / "out" / "tokens"
    with LocalEngine(1) as engine:
        index = make_whole(CorpusStore(config, store.parent), engine)
        before = tree(store)  # Whether inputs.json has the files depends on how long ago they were written.
        other = config.model_copy(update={"append_eos": "never"})
        with monkeypatch.context() as patch:
            patch.setattr(StoreIndex, "write", interrupted)
            with pytest.raises(KeyboardInterrupt):
                make_whole(CorpusStore(other, store.parent), engine)
        assert before.items() <= tree(store).items()
        assert read_index(store) == index
        assert make_whole(CorpusStore(config, store.parent), engine) == index
        assert tree(store) == before
        assert not (store / ".parts").exists()


def test_a_task_is_named_by_its_first_file_and_slice(tmp_path: Path) -> None:
    """Its name, slices and place need no other file than its own."""
    names = ["a", "b", "large", "empty", "c"]
    line = json.dumps({"text": "x" * 2**20}) + "\n"
    for name in names:
        (tmp_path / f"{name}.jsonl").write_text({"large": line * 9, "empty": ""}.get(name, line))
    files = discover([str(tmp_path / f"{name}.jsonl") for name in names])[1]
    units = list_units(files, 2)
    with LocalEngine(1) as engine:
        cuts = cut_units(units, engine)
        assert [cut.name for cut in cuts] == [
            "000000-0000", "000002-0000", "000002-0001", "000002-0002", "000003-0000",
        ]  # fmt: skip
        assert [[Path(slice_.file.path).stem for slice_ in cut.slices] for cut in cuts] == [
            ["a", "b"], ["large"], ["large"], ["large"], ["c"],
        ]  # fmt: skip
        size = len(line)
        assert [(cut.start, cut.stop) for cut in cuts] == [
            (0, 2 * size), (2 * size, 5 * size), (5 * size, 8 * size), (8 * size, 11 * size), (11 * size, 12 * size),
        ]  # fmt: skip
        # A file that is no more than half the share of a task is of one task.
        (alone,) = (unit for unit in list_units(9 * files, 2)[:2] if not unit.is_shared)
        cut = cut_units([alone], engine)
        assert [(each.start, each.stop) for each in cut] == 3 * [(2 * size, 11 * size)]
        for name in ("a", "empty", "c"):
            (tmp_path / f"{name}.jsonl").unlink()
        assert cut_units(units[1:2], engine) == cuts[1:4]


def test_a_first_run_does_not_read_small_files_to_cut_them(tmp_path: Path) -> None:
    """The same parts, and the same slices but for the fingerprints of files that share a part."""
    line = json.dumps({"text": "x" * 2**20}) + "\n"
    contents = {"a.jsonl": line, "b.txt": "text", "c.json": "[]", "d.jsonl": line * 9, "e.jsonl": line}
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    units = list_units(discover([str(tmp_path / name) for name in contents])[1])
    with LocalEngine(1) as engine:
        cuts = cut_units(units, engine)
        for name in ("a.jsonl", "b.txt", "e.jsonl"):
            (tmp_path / name).write_bytes(b"")
        first = cut_units(units, engine, made=())
        (tmp_path / "a.jsonl").unlink()
        with pytest.raises(InputError, match=r"a\.jsonl: cannot be read: No such file"):
            cut_units(units, engine, made=())
    assert [(cut.name, cut.start, cut.stop) for cut in first] == [(cut.name, cut.start, cut.stop) for cut in cuts]
    unread = [Path(slice_.file.path).name for cut in first for slice_ in cut.slices if not slice_.file.fingerprint]
    assert unread == ["a.jsonl", "b.txt", "e.jsonl"]
    for one, other in zip(first, cuts, strict=True):
        for new, old in zip(one.slices, other.slices, strict=True):
            read = new._replace(file=new.file._replace(fingerprint=old.file.fingerprint), xxh3=old.xxh3, span=old.span)
            assert old in (new, read)


def test_a_later_run_finds_the_parts_of_small_files(
    tmp_path: Path, repo: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker of a first run gives a part the fingerprint that a later run compares with its files."""
    write_files(tmp_path, "abc")
    inputs = tuple(str(tmp_path / f"{name}.jsonl") for name in "abc")
    config = TokenizeConfig(inputs=inputs, tokenizer=str(repo / "examples" / "sample" / "tokenizer"))
    store = tmp_path / "out" / "tokens"
    with LocalEngine(1) as engine:
        index = make_whole(CorpusStore(config, store.parent), engine)
        assert len(index.parts) == 3
        before = tree(store)  # Whether inputs.json has the files depends on how long ago they were written.
        (store / index.parts[1].path).unlink()
        caplog.clear()
        caplog.set_level("INFO", "hbpack")
        assert make_whole(CorpusStore(config, store.parent), engine) == index
        assert "tokenized 1 record and reused 2" in caplog.text
        assert tree(store) == before
        assert not (store / ".parts").exists()
        (tmp_path / "b.jsonl").write_text('{"text": "another"}' + " " * (GROUP_BYTES * 2 // 3))
        caplog.clear()
        make_whole(CorpusStore(config, store.parent), engine)
        assert "tokenized 1 record and reused 2" in caplog.text


@pytest.mark.parametrize("form", ["parquet", "zst"])
def test_a_small_file_of_many_slices_is_one_part(tmp_path: Path, repo: Path, form: str) -> None:
    """Its size in the listing tells nothing of what it holds once it is decompressed."""
    records = [{"text": f"text {i}", "of_no_use": " " * 2**20} for i in range(12)]
    if form == "parquet":
        path = tmp_path / "a.parquet"
        pq.write_table(pa.Table.from_pylist(records), path, row_group_size=1, compression="zstd")
    else:
        path = tmp_path / "a.jsonl.zst"
        lines = "".join(json.dumps(record) + "\n" for record in records)
        path.write_bytes(pa.compress(lines.encode(), "zstd", asbytes=True))
    assert path.stat().st_size < GROUP_BYTES // 8
    tokenizer = str(repo / "examples" / "sample" / "tokenizer")
    with LocalEngine(1) as engine:
        index = run_tokenize(TokenizeConfig(inputs=(str(path),), tokenizer=tokenizer), tmp_path / "out", engine)
    (part,) = index.parts
    assert part.path == f"part-{part.fingerprint}.arrow"
    assert len(part.files) > 1
    assert {file.path for file in part.files} == {str(path)}
    store = open_store(tmp_path / "out" / "tokens")
    assert list(store.locate(np.arange(len(store)))) == [(str(path), i + 1) for i in range(12)]


def test_many_files_are_as_one_but_for_their_names(tmp_path: Path, repo: Path) -> None:
    """Samples in the same order; each reject, source and line where it belongs."""
    lines = [json.dumps({"text": f"text {i}"}) if i % 4 else "broken" for i in range(60)]
    (tmp_path / "one.jsonl").write_text("\n".join(lines))
    (tmp_path / "a").mkdir()
    for i in range(0, 60, 3):
        (tmp_path / "a" / f"{i:02}.jsonl").write_text("\n".join(lines[i : i + 3]))
    (tmp_path / "a" / "30.jsonl").write_text("\n")  # Without a record.
    inputs = (str(tmp_path / "one.jsonl"), str(tmp_path / "a"), str(tmp_path / "one.jsonl"))
    config = TokenizeConfig(inputs=inputs, tokenizer=str(repo / "examples" / "sample" / "tokenizer"))
    with LocalEngine(1) as engine:
        index = run_tokenize(config, tmp_path / "out", engine)
    assert [len(part.files) for part in index.parts] == [22]
    store = open_store(tmp_path / "out" / "tokens")
    assert np.bincount(store.sources()).tolist() == [45, 43, 45]
    one = [(str(tmp_path / "one.jsonl"), i + 1) for i in range(60) if i % 4]
    many = [(str(tmp_path / "a" / f"{i // 3 * 3:02}.jsonl"), i % 3 + 1) for i in range(60) if i % 4 and i // 3 != 10]
    assert list(store.locate(np.arange(len(store)))) == one + many + one
    assert store.sources_of(np.array([0, 44, 45, 87, 88, 132])).tolist() == [0, 0, 1, 1, 2, 2]
    from packer_cli.tokens.rejects import store_rejects, write_rejected

    write_rejected(tmp_path, lambda: store_rejects(index, tmp_path / "out" / "tokens"))
    rejected = [json.loads(line) for line in (tmp_path / "rejected.jsonl").open()]
    expected = [(str(tmp_path / "one.jsonl"), i + 1) for i in range(0, 60, 4)]
    of_many = [(str(tmp_path / "a" / f"{i // 3 * 3:02}.jsonl"), i % 3 + 1) for i in range(0, 60, 4) if i // 3 != 10]
    assert [(entry["file"], entry["line"]) for entry in rejected] == expected + of_many + expected
