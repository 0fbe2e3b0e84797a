"""Runs that fail because of the data or the machine: one line, exit code 1."""

from __future__ import annotations

import resource
import shutil
import subprocess

from tests.cli_runner import HBPACK


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
        f"every sample was dropped, see {reasons}",
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


def test_running_out_of_memory_is_one_line(pack, chats, monkeypatch):
    import packer_cli.stages.plan

    def plan(*_):
        raise MemoryError

    monkeypatch.setattr(packer_cli.stages.plan, "plan_store", plan)
    done = pack(chats)
    assert done.code == 1
    assert done.stderr.splitlines()[-1] == (
        "error: out of memory; close other programs, or give fewer --workers, and run the same command again"
    )


def test_limits_of_the_machine_are_one_line_with_a_remedy(chats, tokenizer, tmp_path):
    """Too few descriptors for workers, and files that may not become as large as a part."""
    command = [*HBPACK, "tokenize", chats, "--tokenizer", tokenizer, "-o", tmp_path / "out", "--workers", 2]

    def last_line(kind: int, number: int) -> str:
        def limit() -> None:
            resource.setrlimit(kind, (number, resource.getrlimit(kind)[1]))

        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, preexec_fn=limit)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        return done.stderr.splitlines()[-1]

    rest = "and run the same command again to go on"
    assert last_line(resource.RLIMIT_NOFILE, 16).endswith(f"; raise the limit of open files (ulimit -n) {rest}")
    part = tmp_path / "out" / "tokens" / "part-000000-0000.arrow"
    assert last_line(resource.RLIMIT_FSIZE, 5000) == (
        f"error: File too large ({part}); raise the limit of file sizes (ulimit -f) {rest}"
    )
    assert not list(tmp_path.rglob("*.tmp"))
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
