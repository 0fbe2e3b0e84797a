"""Runs that fail because of the data or the machine: one line, exit code 1."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np

from packer_cli.cli.main import main
from packer_cli.plan.packing import REGISTRY
from tests.cli_runner import run


def test_nothing_to_plan_says_why(pack, lines_of, chats, sample, tmp_path):
    def fails(reason, *arguments):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        done = pack(*arguments)
        assert done.code == 1
        assert done.stderr.splitlines()[-1] == f"error: there is nothing to plan: {reason}"

    fails("the inputs hold no records", lines_of("", "  ", name="blank.jsonl"))
    fails("the weights leave out every sample; raise them", f"{chats}@0.000001")
    reasons = repr(f"{tmp_path}/out/rejected.jsonl")
    fails(f"every record was rejected, see {reasons}", lines_of("x", "y"))
    assert len((tmp_path / "out" / "rejected.jsonl").read_text().splitlines()) == 2
    fails(
        "all samples have more than 8 tokens, and --overflow drop leaves them out; give longer --groups, or another "
        "--overflow",
        sample / "journals.jsonl",
        "--groups",
        "8",
        "--overflow",
        "drop",
    )
    assert len((tmp_path / "out" / "rejected.jsonl").read_text().splitlines()) == 143


def test_overflow_error_names_the_record(pack, sample):
    done = pack(sample / "journals.jsonl", "--groups", "1k", "--overflow", "error")
    assert done.code == 1
    assert done.stderr.splitlines()[-1] == (
        f"error: {sample}/journals.jsonl:2: the sample has 9200 tokens, over the largest group's 1024 "
        "(59 such samples); choose --overflow split, truncate or drop"
    )


def test_a_plan_that_breaks_a_rule_is_a_bug(hbpack, tmp_path, monkeypatch):
    def one_pack(lengths, capacity, seed, options):
        return np.array([0, len(lengths)]), np.arange(len(lengths), dtype=np.int32)

    monkeypatch.setitem(REGISTRY._own, "none", replace(REGISTRY["none"], pack=one_pack))
    (tmp_path / "lengths.txt").write_text("5\n7\n")
    options = ("--groups", "8", "--gpus", 1, "--packing", "none", "--balance", "none")
    done = hbpack("stats", tmp_path / "lengths.txt", *options)
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr == (
        "error: the plan breaks a rule: pack 0 holds 12 tokens, over its capacity of 8; this is a bug in hbpack, or "
        "in what another package brought; report it with the command that you ran\n"
    )


def test_running_out_of_memory_advises_workers_only_where_there_are_some(monkeypatch, tmp_path):
    import packer_cli.commands.stats

    def stats(*_, **__):
        raise MemoryError

    monkeypatch.setattr(packer_cli.commands.stats, "stats", stats)
    (tmp_path / "lengths.txt").write_text("5\n")
    done = run(main, "stats", tmp_path / "lengths.txt")
    assert (done.code, done.stderr) == (
        1,
        "error: out of memory; close other programs and run the same command again\n",
    )


def test_running_out_of_memory_is_one_line(pack, chats, monkeypatch):
    import packer_cli.commands.plan

    def plan(*_):
        raise MemoryError

    monkeypatch.setattr(packer_cli.commands.plan, "plan_cut", plan)
    done = pack(chats)
    assert done.code == 1
    assert done.stderr.splitlines()[-1] == (
        "error: out of memory; close other programs, or give fewer --workers, and run the same command again"
    )
