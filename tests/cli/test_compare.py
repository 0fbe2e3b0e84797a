"""`hbpack compare`: every row is the plan that `hbpack stats` makes with the row's options."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from packer_cli.compare import comparison
from packer_cli.compare.row_process import row_figures
from packer_cli.plan.packing import REGISTRY
from packer_cli.plan.strategies.registry import STRATEGIES
from packer_cli.tables.compare import COLUMNS
from tests.cli.conftest import GROUPS

COST = {"seconds", "peak_bytes"}
ABSENT = {"delay", "source-mix", "epoch", "gpu-days", "cbr", "cbr-bound"}
"""Columns of a table of lengths alone, without a model of time."""


@pytest.fixture(scope="module")
def lengths(tmp_path_factory):
    """600 lengths, two of them over the longest group."""
    path = tmp_path_factory.mktemp("lengths") / "lengths.npy"
    generator = np.random.default_rng(0)
    values = np.clip(generator.lognormal(4, 1, 600), 1, 1000).astype(np.int32)
    values[::40] = generator.integers(1100, 3000, 15)
    values[[5, 100]] = 9000
    np.save(path, values)
    return path


SAVE = "save one array with numpy.save, or name text with one integer a line"
RULE = "write one integer a line, 1 .. 2147483647"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("empty.npy", b"", f" is not a .npy of integers: No data left in file; {SAVE}"),
        ("blank.txt", b"\n", f" is empty; {SAVE}"),
        (
            "text.npy",
            b"12 13\n",
            f" is not a .npy of integers: it does not begin as one, or holds objects; {SAVE}",
        ),
        ("cut.npy", b"PK\x03\x04", f" is not a .npy of integers: File is not a zip file; {SAVE}"),
        ("archive.npy", None, f" is an archive of arrays (.npz); {SAVE}"),
        (
            "long.txt",
            b"5 99999999999999999999",
            f": value 2 is '99999999999999999999'; {RULE}",
        ),
        ("signs.txt", b"5 --5", f": value 2 is '--5'; {RULE}"),
    ],
)
def test_what_is_no_file_of_lengths(hbpack, tmp_path, name, content, reason):
    path = tmp_path / name
    if content is None:
        with path.open("wb") as file:
            np.savez(file, lengths=np.arange(1, 4))
    else:
        path.write_bytes(content)
    done = hbpack("compare", path, *GROUPS)
    assert done == (2, "", f"error: lengths file '{path}'{reason}\n")


def figures(row):
    return {key: row[key] for key in row if key not in COST}


def stats_of_row(hbpack, inputs, row, *options):
    arguments = [word for name, value in row["options"].items() for word in (f"--{name}", value)]
    return json.loads(hbpack("stats", inputs, "--gpus", 8, *arguments, *options, "--json").stdout)


@pytest.mark.usefixtures("rows_of_this_process")
def test_all_rows_have_the_figures_of_stats(hbpack, lengths):
    done = hbpack("compare", lengths, *GROUPS, "--json")
    assert done.code == 0
    comparison = json.loads(done.stdout)
    rows = comparison["rows"]
    assert [re.split("[:/@]", row["name"])[0] for row in rows if row["kind"] == "packing"] == list(REGISTRY)
    assert done.stderr.startswith(f"compared {len(rows)} plans of 600 samples, ")
    for row in rows:
        assert row["error"] is None, row["name"]
        assert row["seconds"] > 0
        assert row["peak_bytes"] is None or row["peak_bytes"] >= 0
        if row["options"]["packing"].startswith("padded"):
            continue  # A baseline, which stats refuses.
        stats = stats_of_row(hbpack, lengths, row)
        assert (row["overall"], row["groups"]) == (stats["overall"], stats["groups"]), row["name"]
        assert comparison["lengths"] == stats["lengths"]
    naive = next(row for row in rows if row["name"] == "isf/none@longest")
    assert {**naive["overall"], **stats["baseline"]} == {"name": stats["baseline"]["name"], **naive["overall"]}
    assert len({row["overall"]["abr"] for row in rows}) > len(rows) / 2  # The rows are different plans.


def test_the_same_for_any_number_of_workers_and_in_the_order_asked_for(hbpack, lengths):
    rows = ("--algorithms", "none,isf,bfd/none,/window:4", "--seed", 3, "--global-tokens", "32k", "--fill", "greedy")
    done = [json.loads(hbpack("compare", lengths, *GROUPS, *rows, "--workers", k, "--json").stdout) for k in (1, 3)]
    assert [row["name"] for row in done[0]["rows"]] == ["none", "isf", "bfd/none", "bfs/window:4"]
    assert list(map(figures, done[0]["rows"])) == list(map(figures, done[1]["rows"]))
    for row in done[0]["rows"]:
        stats = stats_of_row(hbpack, lengths, row, *rows[2:])
        assert row["overall"] == stats["overall"]


def test_the_table_is_sorted_and_whole(hbpack, lengths):
    arguments = ("compare", lengths, *GROUPS, "--algorithms", "isf/none,isf,wrap")
    done = hbpack(*arguments, "--sort", "-abr", "--columns", "all")
    assert done.code == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("600 samples, ")
    assert lines[0].endswith(
        "; groups 1k:1,8k:4 on 8 GPUs; packing bfs and balance refine where a row names none"
    )  # fmt: skip
    header = lines[2]
    for column in COLUMNS:
        assert (column.header in header) == (column.name not in ABSENT)
    table = [line.split() for line in lines[4 : lines.index("", 4)]]
    assert table[0][0] == "isf/none"
    assert {row[0] for row in table} == {"isf/none", "isf", "wrap@longest"}
    assert lines[-3:-1] == [
        "  wrap@longest: leaves out 12.9% of the attention work of the others, as it cuts samples",
        "  @longest: 8k:4 alone",
    ]
    rows = json.loads(hbpack(*arguments, "--sort", "-abr", "--json").stdout)["rows"]
    assert [row["name"] for row in rows] == [row[0] for row in table]
    ratios = [row["overall"]["abr"] for row in rows]
    assert ratios == sorted(ratios, reverse=True)
    assert json.loads(hbpack(*arguments, "--json").stdout)["rows"][0]["name"] == "isf/none"


def test_a_corpus_a_token_store_and_a_packed_set_are_the_same_samples(
    hbpack, pack, sample, chats, tokenizer, tmp_path
):
    inputs = (chats, f"{sample / 'journals.jsonl'}@0.5")
    assert pack(*inputs).code == 0
    rows = (*GROUPS, "--algorithms", "bfs,bfd/none", "--json")
    corpus = hbpack("compare", *inputs, "--tokenizer", tokenizer, *rows)
    packed = hbpack("compare", tmp_path / "out", *rows)
    assert corpus.code == packed.code == 0
    assert corpus.stderr.splitlines()[4].startswith("tokenized ")
    of_corpus, of_set = json.loads(corpus.stdout), json.loads(packed.stdout)
    assert of_corpus["lengths"] == of_set["lengths"]
    assert list(map(figures, of_corpus["rows"])) == list(map(figures, of_set["rows"]))
    manifest = json.loads((tmp_path / "out" / "hbpack.json").read_text())
    assert of_set["rows"][0]["overall"] == manifest["metrics"]["overall"]
    assert of_set["rows"][0]["overall"]["source_mix_spread"] > 0
    table = hbpack("compare", tmp_path / "out", *rows[:-1], "--columns", "all").stdout
    assert "source mix" in table
    stats = json.loads(hbpack("stats", tmp_path / "out", *GROUPS, "--json").stdout)
    assert stats["overall"] == manifest["metrics"]["overall"]  # Weights count there too.
    (tmp_path / "config.yaml").write_text(f"inputs: {tmp_path / 'out'}\ngroups: [1k:1, 8k:4]\ngpus: 8\n")
    again = hbpack("compare", "--config", tmp_path / "config.yaml", "--algorithms", "bfs,bfd/none", "--json")
    assert list(map(figures, json.loads(again.stdout)["rows"])) == list(map(figures, of_set["rows"]))


KINDS = "packed data set (hbpack.json), plan, token store, or file of lengths"
LENGTHS = "a packed data set, a token store or a file of lengths"
WRAP = "packing 'wrap' cuts samples, so it needs exactly one group; give one, or another packing"
TOO_LONG = (
    "the longest sample has 9000 tokens, over the largest group's 8192; choose --overflow split, truncate or drop"
)
NO_SOLVER = (
    "PuLP has no solver: neither HiGHS nor CBC is installed; install HiGHS with 'pip install highspy', or choose "
    "what needs none: packing 'bfd', bound 'l2'"
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "INPUT is required"),
        (["5.txt", "5.txt"], "several inputs are a corpus, which needs --tokenizer"),
        (["chats.jsonl"], "'chats.jsonl' is a corpus, which needs --tokenizer"),
        (["chats.txt.gz"], "'chats.txt.gz' is a corpus, which needs --tokenizer"),
        (["nowhere"], f"'nowhere' does not exist; name {LENGTHS}, or a corpus and its --tokenizer"),
        (["."], f"'.' is not a {KINDS}; name one, or a corpus and its --tokenizer"),
        (["5.npy", "--tokenizer", "t"], "'5.npy' has its lengths already and is not a corpus; leave out --tokenizer"),
        (["5.txt", "--append-eos", "auto"], "--append-eos is for a corpus; give --tokenizer with it, or leave it out"),
        (
            ["5.txt", "--sort", "speed"],
            f"--sort: there is no column 'speed'; columns: {', '.join(column.name for column in COLUMNS)}",
        ),
        (
            ["5.txt", "--algorithms", "best"],
            f"--algorithms: row 'best': unknown packing algorithm 'best'; known: {', '.join(REGISTRY)}",
        ),
        (["5.txt", "--packing", "wrap"], f"--packing: {WRAP}"),
        (["5.txt", "--gpus", "0"], "--gpus must be at least 1, got 0"),
    ],
)  # fmt: skip
def test_wrong_usage(hbpack, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    for name in ("5.txt", "5.npy", "chats.jsonl", "chats.txt.gz"):
        (tmp_path / name).write_text("5")
    assert hbpack("compare", *GROUPS, *arguments) == (2, "", f"error: {message}\n")


def test_samples_that_no_row_can_plan(hbpack, lengths, pack, chats, tmp_path):
    done = hbpack("compare", lengths, *GROUPS, "--overflow", "error")
    assert done == (1, "", f"error: {TOO_LONG}\n")
    (tmp_path / "long.txt").write_text("9000")
    done = hbpack("compare", tmp_path / "long.txt", *GROUPS, "--overflow", "drop")
    assert done == (1, "", "error: there is nothing to plan: no sample is left; add data, or choose longer --groups\n")
    assert hbpack("compare", lengths).stderr == "error: --groups is required\n"
    out = tmp_path / "out"
    assert pack(chats, "--no-keep-tokens").code == 0
    message = f"'{out}' is planned and keeps no tokens; name {LENGTHS}"
    assert hbpack("compare", out, *GROUPS) == (2, "", f"error: {message}\n")


def test_a_packing_that_runs_out_of_time_says_so(hbpack, tmp_path):
    path = tmp_path / "lengths.txt"
    path.write_text("410 410 307 307 307 307 " * 20)
    done = hbpack("compare", path, *GROUPS, "--algorithms", "ilp:time_limit=1e-6,bfd")
    assert " ilp:time_limit=1e-6 * " in done.stdout
    assert done.stdout.splitlines()[-2] == (
        "  ilp:time_limit=1e-6: * stopped at its time limit; its packs are the best so far, "
        "and another run may find others"
    )
    done = hbpack("compare", path, *GROUPS, "--algorithms", "ilp", "--json")
    assert json.loads(done.stdout)["rows"][0]["cut_off"] is False


def row_without_a_solver(task):
    """As where neither solver is installed; and some rows come to other ends."""
    import pulp

    from packer_cli.plan.packing.ilp import solver

    solver._has_highs = lambda: False
    pulp.COIN_CMD.available = lambda self: False
    if task.requests[0].algorithm.name == "ffd":
        os.kill(os.getpid(), signal.SIGKILL)
    if task.requests[0].algorithm.name == "ffs":
        os._exit(3)
    if task.requests[0].algorithm.name == "bfs":
        raise MemoryError
    if task.requests[0].algorithm.name == "spfhp":
        raise KeyError("a bug")
    return row_figures(task)


def test_a_row_that_fails_shows_why_and_ends_no_other(hbpack, tmp_path, monkeypatch):
    lengths = tmp_path / "hard.npy"  # neither best-fit nor bin slack reaches the bound, so `ilp` needs its solver
    np.save(lengths, np.random.default_rng(0).integers(1500, 4500, 300))
    monkeypatch.setattr(comparison, "row_figures", row_without_a_solver)
    arguments = ("compare", lengths, *GROUPS, "--algorithms", "ilp,ffd,bfd,ffs,bfs,spfhp,isf", "--sort", "abr")
    done = hbpack(*arguments)
    assert done.code == 0
    table = [line.split() for line in done.stdout.splitlines()[4:11]]
    assert {row[0] for row in table[:2]} == {"bfd", "isf"}
    assert [row[0] for row in table[2:]] == ["ilp", "ffd", "ffs", "bfs", "spfhp"]
    assert [len(row) for row in table[2:]] == [1, 1, 1, 2, 1]  # bfs is the plan of the options.
    assert done.stdout.splitlines()[12:-1] == [
        f"  ilp: failed: {NO_SOLVER}",
        "  ffd: failed: its process was killed, perhaps for want of memory; try fewer --workers",
        "  ffs: failed: its process ended with exit code 3",
        "  bfs: failed: out of memory; try fewer --workers",
        "  spfhp: failed: KeyError: 'a bug'",
        "  (yours): what your options plan",
    ]
    assert " loses least to padding and waiting, " in done.stdout.splitlines()[-1]
    done = hbpack("compare", lengths, *GROUPS, "--algorithms", "ffs,bfd", "--json")
    assert [row["error"] for row in json.loads(done.stdout)["rows"]] == ["its process ended with exit code 3", None]
    done = hbpack("compare", lengths, *GROUPS, "--algorithms", "ffs")
    assert done.code == 1
    assert done.stdout.splitlines()[-1] == "  ffs: failed: its process ended with exit code 3"
    assert done.stderr.endswith("error: every plan failed, for the reasons above\n")


@pytest.mark.parametrize("moment", [pytest.param("kernels are compiled", marks=pytest.mark.slow), "rows run"])
@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_all_at_once(tmp_path, moment):
    np.save(tmp_path / "lengths.npy", np.random.default_rng(0).integers(1, 4000, 3_000_000).astype(np.int32))
    command = [sys.executable, "-m", "packer_cli", "compare", tmp_path / "lengths.npy", *GROUPS, "--workers", 2]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    num_children = 4  # The tracker, the server, and two rows.
    if moment == "kernels are compiled":
        environment["NUMBA_CACHE_DIR"] = str(tmp_path / "kernels")
        num_children = 2
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=environment,
    )  # fmt: skip
    try:
        parent = psutil.Process(process.pid)
        end = time.monotonic() + 60
        while len(parent.children(recursive=True)) < num_children or (
            num_children == 2 and not list(tmp_path.glob("kernels/**/*.nbc"))
        ):
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.02)
        children = parent.children(recursive=True)
        assert len(children) == num_children
        begin = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
        assert time.monotonic() - begin < 5
    finally:
        process.kill()
    assert (process.returncode, stdout) == (130, "")
    assert stderr.strip() == "error: interrupted"
    psutil.wait_procs(children, timeout=10)
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    assert {path.name for path in tmp_path.iterdir()} <= {"lengths.npy", "kernels"}


def test_a_strategy_is_the_options_that_it_stands_for(hbpack, lengths):
    spelled = ("--packing", "isf", "--fill", "greedy", "--balance", "sort")
    by_name = hbpack("stats", lengths, *GROUPS, "--strategy", "hbp", "--curriculum-steps", 0, "--json")
    assert by_name.code == 0
    by_options = hbpack("stats", lengths, *GROUPS, *spelled, "--json")
    assert {**json.loads(by_name.stdout), "strategy": "balanced"} == json.loads(by_options.stdout)
    done = hbpack("stats", lengths, *GROUPS, "--strategy", "hbp", "--json")
    assert "the curriculum takes" in done.stderr  # Its 500 steps would use up the short groups.


def test_strategies_side_by_side(hbpack, lengths):
    done = hbpack("compare", lengths, *GROUPS, "--strategies", "all", "--json")
    rows = json.loads(done.stdout)["rows"]
    rows = {row["name"]: row for row in rows}
    assert rows.keys() == {name for name, strategy in STRATEGIES.items() if not strategy.needs - {"a stream"}}
    for name in ("naive", "longalign-packing", "wlb", "fixed-4d", "plain-4d"):
        assert rows[name]["overall"] == stats_of_row(hbpack, lengths, rows[name])["overall"]
    assert rows["wlb"]["note"].endswith("for pipelines; its imbalance is of --cost 1,24576")


@pytest.mark.parametrize("command", ["compare", "simulate"])
@pytest.mark.parametrize("name", ["flexsp:all", "wlb"])
def test_some_strategies_have_no_packings_to_compare(hbpack, lengths, command, name):
    model = ("--model", "config.json", "--gpu", "h100")
    done = hbpack(command, lengths, "--groups", "8k:1", "--gpus", 8, "--strategy", name, *model)
    message = (
        f"--strategy {name} packs in its own way, so it has no packings and balances to compare; "
        f"see hbpack compare --strategies {name},balanced"
    )
    assert done == (2, "", f"error: {message}\n")


@pytest.mark.parametrize(("other", "name"), [("--algorithms", "bfd"), ("--strategy", "hbp")])
def test_strategies_and_rows_do_not_mix(hbpack, lengths, other, name):
    done = hbpack("compare", lengths, *GROUPS, "--strategies", "all", other, name)
    assert done == (2, "", f"error: --strategies and {other} do not go together; give one of them\n")
