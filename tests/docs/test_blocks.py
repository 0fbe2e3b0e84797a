"""Every code block of README.md and docs/ runs as it is printed, or says why it cannot."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from tests.docs.blocks import LANGUAGES, ROOT, Block, num_ranks, pages, read_blocks
from tests.docs.python import python
from tests.docs.shell import commands, run_block, run_inside

NOT_RUN: dict[str, dict[str, int]] = {
    "README.md": {"CI calls both": 1},
    "docs/cookbook.md": {"needs 8 GPUs": 10, "needs 4 GPUs": 1, "needs 3 GPUs": 1},
    "docs/export.md": {"needs XTuner": 1, "needs mosaicml-streaming": 1},
    "docs/extending.md": {"tests/test_extending.py does, as a file of the package": 1},
    "docs/from/axolotl.md": {"needs 8 GPUs": 1},
    "docs/from/megatron.md": {"needs Megatron's process groups": 1},
    "docs/from/streaming.md": {"needs 8 GPUs": 1},
    "docs/from/trl.md": {"needs 8 GPUs": 1},
    "docs/loader.md": {"needs torchtitan": 1},
    "docs/profile.md": {"needs a GPU": 1},
    "docs/quickstart.md": {"CI has installed it": 1},
    "docs/remote.md": {"CI has installed it": 1},
    "docs/scale.md": {"needs Slurm": 2, "needs a Ray cluster": 1},
    "docs/trainers.md": {"needs the trainers' packages": 1},
    "docs/tutorial.md": {"CI has installed it": 1},
}
"""Page -> why blocks of it are not run -> how many."""

TUTORIAL = "docs/tutorial.md"
"""tests/docs/test_tutorial.py follows it."""
BLOCKS = {page: read_blocks(page) for page in pages()}
SLOW_PAGES = ["docs/api.md", "docs/export.md", "docs/loader.md"]
"""Pages that take long as a whole, mostly to import trainers."""
HAS_SLOW = [page for page, blocks in BLOCKS.items() if page in SLOW_PAGES or any(block.is_slow for block in blocks)]
QUICK = [page for page, blocks in BLOCKS.items() if blocks and page not in (TUTORIAL, *SLOW_PAGES)]


@pytest.mark.parametrize("page", QUICK)
def test_the_blocks_of_a_page_run(page, scratch):
    run_page(page, [block for block in BLOCKS[page] if not block.is_slow], scratch)


@pytest.mark.slow
@pytest.mark.parametrize("page", HAS_SLOW)
def test_all_blocks_of_a_page_run(page, scratch, request):
    if any("s3://" in block.source for block in BLOCKS[page]):
        request.getfixturevalue("buckets")
    run_page(page, BLOCKS[page], scratch)


def run_page(page: str, blocks: list[Block], scratch: Callable[[], Path]) -> None:
    """Run those blocks of a page, in order, in a folder of its own."""
    runnable = [block for block in blocks if not block.reason]
    with ExitStack() as stack:
        if runnable:
            folder = scratch()
        if any(block.language == "python" for block in runnable):
            pytest.importorskip("torch")
            processes = stack.enter_context(python(num_ranks(page), folder))
        for block in runnable:
            if block.language in ("bash", "console"):
                run_block(block)
            elif block.language == "python":
                processes.run(block)
            elif block.language == "yaml":
                assert yaml.safe_load(block.source), block
            elif block.language == "json":
                assert json.loads(block.source), block


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
    with pytest.raises(AssertionError, match=r"docs/none\.md:7: \$ hbpack stats +OUT\nexit code 2"):
        run_block(block)
    printed = Block("docs/none.md", 7, "console", "$ echo a; echo 3.2 s\na\n0.5 s\n$ echo b\nc\n", "")
    with pytest.raises(AssertionError, match=r"\$ echo b\nprints\nb\n\nand not\nc"):
        run_block(printed)
    wrong = Block("docs/none.md", 7, "python", "\n1 / 0\n", "")
    with (
        python(2, tmp_path) as processes,
        pytest.raises(AssertionError, match=r"(?s)none\.md\", line 8.*ZeroDivision"),
    ):
        processes.run(wrong)


def test_commands_that_are_not_run_exist():
    blocks = [block for blocks in BLOCKS.values() for block in blocks if block.reason]
    named = [
        (block, found)
        for block in blocks
        for command, _ in commands(block)
        for found in re.findall(r"\bhbpack ([a-z][^\"']*)|\b(examples/\w+\.py)", command)
    ]
    assert named
    for block, (words, script) in named:
        assert not script or (ROOT / script).is_file(), f"{block}: there is no {script}"
        if words:  # click reads all options before it shows the help.
            code, output = run_inside(["hbpack", *words.split(), "--help"])
            assert code == 0, f"{block}: {output}"
