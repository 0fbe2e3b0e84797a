"""`python -m tests.benchmark [names...]`: run benchmarks, print them, and write them into docs/benchmarks/."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.benchmark import (
    chats,
    compare_plans,
    containers,
    cp_sharding,
    engines,
    frontier,
    gain,
    hydraulis,
    items,
    loader,
    memory,
    mixed_degrees,
    output_layer,
    pack,
    page,
    paper,
    paper_times,
    plan,
    prefix_trees,
    scale,
    templates,
    tokenizers,
    wlb,
    wlb_times,
    write,
)
from tests.benchmark.measure import BenchmarkError
from tests.benchmark.pack_rows import ROW_VARIABLE
from tests.benchmark.peers import compare
from tests.benchmark.report import machine, write_section

BENCHMARKS: dict[str, Callable[[Path, int], str]] = {
    "pack": pack.run,
    "tokenizers": tokenizers.run,
    "chats": chats.run,
    "templates": templates.run,
    "containers": containers.run,
    "memory": memory.run,
    "prefix-trees": prefix_trees.run,
    "items": items.run,
    "engines": engines.run,
    "loader": loader.run,
    "output-layer": output_layer.run,
    "write": write.run,
    "plan": plan.run,
    "peers": compare.run,
    "scale": scale.run,
    "frontier": frontier.run,
    "compare": compare_plans.run,
    "gain": gain.run,
    "page": page.run,
    "paper": paper.run,
    "paper-times": paper_times.run,
    "mixed-degrees": mixed_degrees.run,
    "wlb": wlb.run,
    "wlb-times": wlb_times.run,
    "hydraulis": hydraulis.run,
    "cp-sharding": cp_sharding.run,
}
"""Name -> (folder to work in, number of runs) -> text. In this order: `loader` reads what `pack` packed."""


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmark", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which to run: {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument("--runs", type=int, default=3, help="runs of each contender (default: 3)")
    parser.add_argument("--print-only", action="store_true", help="leave docs/benchmarks/ as it is")
    parser.add_argument("--row", help="only this row of `pack`, such as 'alpaca cl100k'; written nowhere")
    parser.add_argument("--slow", action="store_true", help="also what takes long: a billion samples in `scale`")
    arguments = parser.parse_args()
    if arguments.slow:
        os.environ[scale.SLOW_VARIABLE] = "1"
    if arguments.row:
        os.environ[ROW_VARIABLE] = arguments.row
    unknown = [name for name in arguments.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"unknown benchmark {unknown[0]!r}; known: {', '.join(BENCHMARKS)}")
    if arguments.runs < 1:
        parser.error(f"--runs must be at least 1, got {arguments.runs}")
    failed = False
    with tempfile.TemporaryDirectory(prefix="hbpack-bench-") as work:
        for name, run in BENCHMARKS.items():
            if arguments.names and name not in arguments.names:
                continue
            try:
                text = run(Path(work), arguments.runs)
            except BenchmarkError as error:
                print(f"{name}: {error}", file=sys.stderr)
                failed = True
                continue
            command = f"python -m tests.benchmark {name}"
            command += f" --runs {arguments.runs}" if arguments.runs != 3 else ""
            command += " --slow" if arguments.slow and name == "scale" else ""
            body = f"Made by `{command}` on {machine()}.\n\n{text}"
            print(f"\n## {name}\n\n{body}")
            if not (arguments.print_only or arguments.row):
                write_section(name, body)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
