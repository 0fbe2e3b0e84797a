"""`--max-rejected` and `--strict`: what stops a run before it plans, and what is done already when it goes on."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import packer_cli
from packer_cli.errors import TooManyRejectedError
from packer_cli.tokens.index import PartFile
from packer_cli.tokens.limits import num_lost_records
from tests.reference import tree

TEXTS = [{"text": f"text number {i}"} for i in range(98)]
KIND = "broken JSON: unexpected character, expected a JSON value at column ..."


@pytest.fixture
def two_bad(lines_of):
    """A hundred records, of which two are rejected."""
    return lines_of("bad", *TEXTS, "worse")


def table(path, rows, *, cut=0):
    """A Parquet file of so many texts, without its last bytes."""
    pq.write_table(pa.table({"text": [f"text number {i}" for i in range(rows)]}), path, compression="none")
    path.write_bytes(path.read_bytes()[: len(path.read_bytes()) - cut])
    return path


@pytest.mark.parametrize(
    ("limit", "what"),
    [
        ("1", "2 of 100 records (2.00%)"),
        ("1.9%", "2 of 100 records (2.00%)"),
        ("1.9%bytes", "53 B of 2.6 KiB (2.00%)"),
        ("2", None),
        ("2%", None),
        ("2.1%bytes", None),
    ],
)
def test_limits(pack, two_bad, tmp_path, limit, what):
    done = pack(two_bad, "--max-rejected", limit)
    if what is None:
        assert done.code == 0
        return
    assert (done.code, (tmp_path / "out/plan.arrow").exists()) == (1, False)
    line = done.stderr.splitlines()[-1].removeprefix("error: ")
    assert line == (
        f"{what} rejected, more than --max-rejected {limit}, most often: {KIND} (2, the first at {two_bad}:1); see "
        f"{tmp_path}/out/tokens/rejected-*.jsonl, or raise the limit: the run then goes on from here"
    )


def test_a_run_with_a_higher_limit_goes_on(pack, two_bad, chats, tmp_path):
    """All is tokenized by then, whatever came first, and the set is that of a run without a limit."""
    assert pack(two_bad, chats, "--max-rejected", "1%").code == 1
    assert len(list((tmp_path / "out/tokens").glob("part-*.arrow"))) == 1
    done = pack(two_bad, chats, "--max-rejected", "2%")
    assert (done.code, "reused 140 tokenized records" in done.stderr) == (0, True)
    assert pack(two_bad, chats, output=tmp_path / "other").code == 0
    assert tree(tmp_path / "out") == tree(tmp_path / "other")


def test_a_damaged_file_counts_as_what_it_lost(pack, lines_of, tmp_path):
    """A whole file of 1,000 texts beside one of as many that was cut short: half of all is lost."""
    whole, damaged = table(tmp_path / "a.parquet", 1000), table(tmp_path / "b.parquet", 1000, cut=10)
    lines_of(*TEXTS, "bad", name="c.jsonl")
    for limit in ("40%", "40%bytes", "500"):
        done = pack(tmp_path / "*.parquet", tmp_path / "c.jsonl", "--max-rejected", limit)
        assert done.code == 1
        assert "lost in damaged files, about " in done.stderr
        assert f"such as {damaged}: damaged: opening it fails" in done.stderr
    words = (whole, damaged, tmp_path / "c.jsonl")
    assert pack(*words, "--max-rejected", "60%").code == pack(*words, "--max-rejected", "60%bytes").code == 0


def test_strict(pack, hbpack, chats, tokenizer, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(chats.read_bytes())
    assert pack(folder, "--strict").code == 0
    (folder / "b.xyz").write_text("no data")
    damaged = table(folder / "c.parquet", 10, cut=9)
    words = ("--tokenizer", tokenizer, "--workers", 1, "--output", tmp_path / "store")
    for done in (pack(folder, "--strict"), hbpack("tokenize", folder, *words, "--strict")):
        line = done.stderr.splitlines()[-1]
        assert done.code == 1
        assert line.startswith(
            "error: --strict takes no skipped or damaged files: skipped 1 file of .xyz (7 B); "
            f"{damaged}: damaged: opening it fails ("
        )
        assert line.endswith("or leave out --strict: the run then goes on from here")
    assert not (tmp_path / "store/tokens/tokens.json").exists()
    assert hbpack("tokenize", folder, *words).code == 0
    (folder / "b.xyz").unlink()
    damaged.unlink()
    table(folder / "c.parquet", 10)
    assert pack(folder, "--strict").code == 0


def test_only_new_inputs_count_for_append(pack, hbpack, two_bad, lines_of, tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old/a.jsonl").write_bytes(two_bad.read_bytes())
    (tmp_path / "old/b.xyz").write_text("no data")
    assert pack(tmp_path / "old").code == 0
    before = (tmp_path / "out/hbpack.json").read_bytes()
    bad = lines_of({"text": "a"}, "bad", name="bad.jsonl")
    words = ("append", tmp_path / "out", "--workers", 1)
    done = hbpack(*words, bad, "--max-rejected", "1%")
    assert done.code == 1
    assert f"1 of 2 records (50.00%) rejected, more than --max-rejected 1%, most often: {KIND}" in done.stderr
    assert f"(1, the first at {bad}:2)" in done.stderr
    assert (tmp_path / "out/hbpack.json").read_bytes() == before
    good = lines_of({"text": "a good text"}, name="good.jsonl")
    done = hbpack(*words, good, "--max-rejected", 0, "--strict")
    assert done.code == 0, done.stderr
    assert hbpack(*words, good, "--max-rejected", 0, "--strict").code == 0  # It is there already.


def test_limits_in_python_and_in_a_config(two_bad, hbpack, tokenizer, tmp_path):
    options = {"groups": "1k", "gpus": 1, "workers": 1, "tokenizer": tokenizer, "output": tmp_path / "out"}
    for limit in (1, "1", "1%"):
        with pytest.raises(TooManyRejectedError, match=r"^2 of 100 records \(2.00%\) rejected"):
            packer_cli.pack(two_bad, max_rejected=limit, **options)
    packer_cli.pack(two_bad, max_rejected="2%", strict=True, **options)
    config = {"inputs": [str(two_bad)], "max-rejected": 1, **{k: str(v) for k, v in options.items()}}
    (tmp_path / "config.yaml").write_text(json.dumps(config | {"gpus": 1, "workers": 1}))
    done = hbpack("pack", "--config", tmp_path / "config.yaml")
    assert (done.code, "more than --max-rejected 1, " in done.stderr) == (1, True)


def test_records_of_lost_bytes():
    def file(source, num_bytes, lost, records):
        return PartFile(
            path="", source=source, fingerprint="", num_bytes=num_bytes, lost_bytes=lost, num_samples=records,
            num_rejected=0, num_tokens=0, num_loss_tokens=0,
        )  # fmt: skip

    other = file(1, 50, 0, 100)
    assert num_lost_records([file(0, 1000, 0, 10), other]) == 0
    assert num_lost_records([file(0, 1000, 0, 10), file(0, 500, 500, 0), other]) == 5  # As in their own input.
    assert num_lost_records([file(0, 200, 100, 10), other]) == 10
    assert num_lost_records([file(0, 100, 100, 0), other]) == 200  # As in all, where nothing of it was read.
    assert num_lost_records([file(0, 100, 100, 0)]) == 0
