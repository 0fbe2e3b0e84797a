"""How short the road is from the options of `hbpack plan` to the plan: options -> one request -> `build_plan`."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import packer_cli
from packer_cli.cli import plan as cli_plan
from packer_cli.commands.plan import make_plan, run_plan
from packer_cli.config import resolve
from packer_cli.plan.build import build_plan

ROOT = Path(packer_cli.__file__).parent
MOST = 28
MOST_ANSWERS = 50
OF_THE_STORE = (
    "tokens",
    "corpus/types.py",
    "shards",
    "format",
    "engine",
    "remote",
    "files.py",
    "folder_lock.py",
    "commands/output_folder.py",
    "commands/samples.py",
)
"""What reads the token store, looks for an earlier plan of it, and checks and locks the folders."""
OF_THE_PLAN = ("plan", "plugins.py", "sizes.py", "startup.py")
"""What answers with one value and calls nothing of the road: parsers of one option's text, a strategy's own rules, the
properties of a group, the pieces of the samples."""


def entered(hbpack: Any, *words: object) -> list[CodeType]:
    """The functions of hbpack, each once, that `hbpack plan` enters from its callback to `build_plan`."""
    begin, end = inspect.unwrap(cli_plan.command.callback).__code__, build_plan.__code__
    found: dict[CodeType, None] = {}

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        is_on = event == "call" and (found or code is begin) and end not in found
        # Bodies of classes and modules run once a process; comprehensions are a part of the function around them.
        is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        if is_on and is_function and Path(code.co_filename).is_relative_to(ROOT):
            found[code] = None

    sys.setprofile(note)
    try:
        done = hbpack("plan", *words)
    finally:
        sys.setprofile(None)
    assert done.code == 0, done.stderr
    return list(found)


def place(code: CodeType) -> str:
    return Path(code.co_filename).relative_to(ROOT).as_posix()


def of_rooms(codes: list[CodeType], rooms: tuple[str, ...]) -> list[CodeType]:
    return [code for code in codes if any(f"{place(code)}/".startswith(f"{room}/") for room in rooms)]


def test_few_functions_lie_between_the_options_and_the_plan(hbpack, tokenizer, chats, tmp_path):
    """Left out are what reads the token store and locks folders, which is no road of the options, and what plan/
    answers when it is asked for one value, which has a limit of its own. All else of the package counts."""
    assert hbpack("tokenize", chats, "--tokenizer", tokenizer, "--output", tmp_path / "out").code == 0
    words = (tmp_path / "out", "--groups", "1k:1,8k:4", "--gpus", 8)
    assert hbpack("plan", *words, "-o", tmp_path / "first").code == 0  # Imports what the road needs.
    codes = entered(hbpack, *words, "-o", tmp_path / "second")
    road = [code for code in codes if code not in of_rooms(codes, OF_THE_STORE + OF_THE_PLAN)]
    known = (cli_plan.command.callback, run_plan, make_plan, resolve.resolve)
    assert {inspect.unwrap(each).__code__ for each in known} <= set(road)
    assert codes[-1] is build_plan.__code__
    names = [f"{place(code)}: {code.co_qualname}" for code in road]
    assert len(road) <= MOST, "\n".join(names)
    assert {place(code).partition("/")[0] for code in road} == {"cli", "commands", "config"}
    assert len(of_rooms(codes, OF_THE_PLAN)) <= MOST_ANSWERS  # Nor may the road go on there.
