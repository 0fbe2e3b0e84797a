"""Every code block of README.md and docs/ runs as it is printed, with an installed wheel, or says why it cannot."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import pytest
import yaml

from packer_cli.cli.main import main
from tests.cli_runner import run
from tests.docs.blocks import LANGUAGES, Block, linked_scripts, num_ranks, pages, read_blocks
from tests.docs.python import python
from tests.docs.shell import commands, run_block, run_command

NOT_RUN: dict[str, dict[str, int]] = {
    "README.md": {"CI calls both": 1, "CI has installed it": 1},
    "docs/export.md": {"needs NeMo-RL": 1, "needs XTuner": 1, "needs mosaicml-streaming": 1},
    "docs/from.md": {"needs Axolotl": 1, "needs Megatron's process groups": 1},
    "docs/profile.md": {"needs a GPU": 1},
    "docs/quickstart.md": {"CI has installed it": 1},
    "docs/remote.md": {"CI has installed it": 1},
    "docs/scale.md": {"needs Slurm": 2, "needs a Ray cluster": 1},
    "docs/trainers.md": {
        "needs MosaicML Composer": 1,
        "needs OLMo-core": 1,
        "needs VeOmni": 1,
        "needs torchtitan": 1,
        "needs Megatron": 2,
        "needs the trainers' packages": 1,
    },
    "docs/upstream/trl.md": {"CI has installed it": 1},
    "docs/tutorial.md": {"CI has installed it": 1},
}
"""Page -> why blocks of it are not run -> how many."""

WITHOUT_COMMANDS = {
    "docs/architecture.md": "what lies where in the tree",
    "docs/benchmarks.md": "results",
    **{page: "tables that benchmarks write" for page in pages() if page.startswith("docs/benchmarks/")},
    "docs/faq.md": "answers",
    "docs/hbp.md": "an explanation",
    "docs/metrics.md": "what figures mean",
    "docs/strategies.md": "what rows of a comparison are",
}
"""Pages with nothing to run, and what they are."""
TUTORIAL = "docs/tutorial.md"
"""From a clone: tests/docs/test_tutorial.py follows it."""

SMALLER = {
    r"--gpus 8\b": "--gpus 2",
    r"--nproc-per-node 8\b": "--nproc-per-node 2",
    r"accelerate launch --num_processes 8\b": "torchrun --nproc-per-node 2",  # Without GPUs, it starts one process.
    r"\b(64k|128k):8\b": "2k:2",
    r"\b(16k|8k):1\b": "1k:1",
    r"--global-tokens 512k\b": "--global-tokens 8k",
    r"--max-steps 1000\b": "--max-steps 2",
    r"max_steps=1000\b": "max_steps=2",
    r"\bdevices=8\b": "devices=2",
    r'(TrainingArguments|SFTConfig|DPOConfig)\("runs/': r'\1(use_cpu=True, output_dir="runs/',
    r"\bAccelerator\(\)": "Accelerator(cpu=True)",
}
"""What is smaller in the commands of a page that trains, for two cores without a GPU."""

BLOCKS = {page: read_blocks(page) for page in pages()}

TRAIN = "docs/train.md"
"""The page of each trainer at its shortest."""
TRAINERS = "docs/trainers.md"
LAUNCHED = (TRAIN, TRAINERS)
"""Pages of many scripts, whose trainers are imported once; docs/upstream/trl.md calls torchrun itself."""

LONGEST = (
    TRAINERS, "docs/compare.md", "docs/report.md", "docs/groups.md", "README.md", "docs/simulate.md", "docs/loader.md",
    "docs/preferences.md", "docs/extending.md", "docs/export.md", TRAIN, "docs/upstream/trl.md",
)  # fmt: skip
"""Pages that take longest. They run first, so that none is left to one process at the end."""
PAGES = [*LONGEST, *sorted(BLOCKS.keys() - WITHOUT_COMMANDS - {TUTORIAL, *LONGEST})]


IN_TURN = """
import json, os, sys, torch
found = []
for code in json.load(sys.stdin):
    reader, writer = os.pipe()
    if not os.fork():
        try:
            exec(code, {})
        except BaseException as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(writer)
    found.append(open(reader, "rb").read().decode())
print(json.dumps(found))
"""
"""A program that runs each code that it reads in a process of its own, in which torch alone was imported before."""


@pytest.mark.slow
@pytest.mark.parametrize("page", LAUNCHED)
def test_scripts_import_what_they_name(page, repo, programs):
    """Alone, since the process that they are forked from has imported more."""
    scripts = [block.source for block in BLOCKS[page] if block.file.endswith(".py") and not block.reason]
    scripts += [(repo / "examples" / name).read_text(encoding="utf-8") for name in linked_scripts(page)]
    assert scripts
    codes = []
    for script in scripts:
        tree = ast.parse(script)
        imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
        names = {(alias.asname or alias.name).partition(".")[0] for node in imports for alias in node.names}
        used = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        paths = sorted(path for path in used if re.fullmatch(r"\w+(\.\w+)+", path) and path.split(".")[0] in names)
        codes.append("\n".join([*map(ast.unparse, imports), *paths]))
    command = [programs / "python", "-c", IN_TURN]
    done = subprocess.run(command, cwd=repo / "examples", input=json.dumps(codes), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for number, error in enumerate(json.loads(done.stdout)):
        missing = re.search(r"No module named '(\w+)", error)  # A trainer that is not installed: docs/trainers.md.
        assert not error or (missing and not find_spec(missing[1])), f"{codes[number]}\n{error}"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run(page, scratch, programs, request):
    blocks = [block for block in BLOCKS[page] if not block.reason]
    if any("s3://" in block.source for block in blocks):
        request.getfixturevalue("buckets")
    if any("--push-to-hub" in block.source for block in blocks):
        request.getfixturevalue("hub")
    launcher = request.getfixturevalue("launcher") if page in LAUNCHED else None
    folder = scratch(page)
    with ExitStack() as stack:
        if any(block.language == "python" for block in blocks):
            pytest.importorskip("torch")
            processes = stack.enter_context(python(num_ranks(page), folder, programs))
        for block in smaller(blocks):
            if block.file:
                block.save(Path.cwd())
            elif block.language in ("bash", "console"):
                run_block(block, programs, launcher)
            elif block.language == "python":
                processes.run(block)
            elif block.language == "yaml":
                assert yaml.safe_load(block.source), block
            elif block.language == "json":
                assert json.loads(block.source), block
            elif block.language == "toml":
                assert tomllib.loads(block.source), block


def smaller(blocks: list[Block]) -> list[Block]:
    """The blocks of a page, changed as `SMALLER` says if any of them trains."""
    if not any(re.search(r"^(torchrun|accelerate launch)\b", block.source, re.MULTILINE) for block in blocks):
        return blocks
    changed = []
    for block in blocks:
        source = block.source
        for pattern, less in SMALLER.items():
            source = re.sub(pattern, less, source)
        changed.append(replace(block, source=source))
    return changed


@pytest.mark.slow
def test_the_wheel_is_what_runs(programs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, output = run_command("python -c 'import packer_cli; print(packer_cli.__file__)'", programs)
    assert code == 0
    assert Path(output).is_relative_to(programs.parent)


def test_every_page_runs_or_says_why_not():
    """Of a page without a block that is run, each block has a reason."""
    without = {page for page, blocks in BLOCKS.items() if not {block.language for block in blocks} - {"text"}}
    assert without == set(WITHOUT_COMMANDS)


def test_a_trainer_takes_a_packed_set_in_at_most_twelve_lines():
    """Besides imports, and what any loop of PyTorch begins and ends with."""
    usual = re.compile(r"(from|import|dist\.|optimizer = |for part in|    fully_shard)\b|$", re.MULTILINE)
    scripts = [block for block in BLOCKS[TRAIN] if block.file]
    assert len(scripts) == 5
    for block in scripts:
        assert sum(not usual.match(line) for line in block.source.splitlines()) <= 12, block


def test_blocks_that_are_not_run_are_these():
    found = {page: dict(Counter(block.reason for block in blocks if block.reason)) for page, blocks in BLOCKS.items()}
    assert {page: reasons for page, reasons in found.items() if reasons} == NOT_RUN


def test_every_block_says_what_it_is():
    for block in (block for blocks in BLOCKS.values() for block in blocks):
        assert block.language in LANGUAGES, f"{block}: name one of {', '.join(LANGUAGES)} behind the fence"


def test_no_command_hides_in_text():
    for block in (block for blocks in BLOCKS.values() for block in blocks if block.language == "text"):
        hidden = [line for line in block.source.splitlines() if line.startswith(("$ ", "hbpack "))]
        assert not hidden, f"{block}: {hidden[0]!r} is a command: make the block bash or console"


def test_a_wrong_block_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    block = Block("docs/none.md", 7, "bash", "hbpack stats \\\n    OUT\n", "")
    assert commands(block) == [("hbpack stats      OUT", "")]
    programs = Path(sys.executable).parent
    with pytest.raises(AssertionError, match=r"docs/none\.md:7: \$ hbpack stats +OUT\nexit code 2"):
        run_block(block, programs)
    printed = Block("docs/none.md", 7, "console", "$ echo a; echo 3.2 s\na\n0.5 s\n$ echo b\nc\n", "")
    with pytest.raises(AssertionError, match=r"\$ echo b\nprints\nb\n\nand not\nc"):
        run_block(printed, programs)
    wrong = Block("docs/none.md", 7, "python", "\n1 / 0\n", "")
    with (
        python(2, tmp_path, programs) as processes,
        pytest.raises(AssertionError, match=r"(?s)none\.md\", line 8.*ZeroDivision"),
    ):
        processes.run(wrong)


SHARE_ROWS = {
    "pytorch_fsdp.py", "transformers_trainer.py", "trl_sft.py", "accelerate_loop.py", "lightning_module.py",
}  # fmt: skip


@pytest.mark.parametrize("page", [page for page in BLOCKS if linked_scripts(page)])
def test_scripts_get_a_plan_that_they_can_train(page):
    """For as many GPUs as they start; none whose rows are shared, if they cannot share rows."""
    plans = {}
    for command, _ in chain.from_iterable(commands(block) for block in BLOCKS[page] if block.language == "bash"):
        if found := re.search(r"^hbpack (?:pack|plan) .*--output (\S+)", command):
            plans[found[1]] = command
        elif found := re.search(r"(?:--nproc-per-node|--num_processes) (\d+) (\w+\.py) .*?\b([A-Z]{3,})\b", command):
            gpus, script, packed = found.groups()
            planned = plans[packed]
            assert f"--gpus {gpus} " in planned, command
            is_shared = re.search(r"--groups \S+:([2-9]|\d\d)\b", planned) is not None
            assert not is_shared or script in SHARE_ROWS, command


def test_commands_that_are_not_run_exist():
    blocks = [block for blocks in BLOCKS.values() for block in blocks if block.reason]
    named = [
        (block, found)
        for block in blocks
        for command, _ in commands(block)
        for found in re.findall(r"\bhbpack ([a-z][^\"']*)|\b(\w+\.py)\b", command)
    ]
    assert named
    for block, (words, script) in named:
        assert not script or script in linked_scripts(block.page), f"{block}: the page has no link to {script}"
        if words:  # click reads all options before it shows the help.
            done = run(main, *words.split(), "--help")
            assert done.code == 0, f"{block}: {done.stderr}"
