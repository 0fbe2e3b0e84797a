"""A package as pip leaves it, which brings one of each kind."""

from __future__ import annotations

from pathlib import Path

from tests.docs.blocks import read_blocks

POINTS = {
    "packings": {"two-ends": "two_ends:two_ends", "exits": "ill_behaved:exits", "talks": "ill_behaved:talks"},
    "strategies": {
        "rising": "rising:Rising",
        "broken": "broken:Broken",
        "leaves": "leaves:Leaves",
        "no-rest": "no_rest:NoRest",
        "wrong": "two_ends:two_ends",
    },
    "exports": {"lengths": "lengths_of:Lengths"},
    "formats": {"plain": "plain:FORMAT"},
    "shapes": {"report": "report_shape:SHAPE"},
}
MODULES = {
    "broken": "import no_such_module",
    "leaves": "raise SystemExit(3)",
    "ill_behaved": """
        import sys
        import numpy as np

        print("imported")

        def exits(lengths, capacity, seed):
            sys.exit(0)

        def talks(lengths, capacity, seed):
            print("packing", len(lengths))
            return np.arange(len(lengths) + 1), np.arange(len(lengths), dtype=np.int32)
    """,
    "no_rest": """
        from packer_cli.plan.strategies.by_group.strategy import GroupStrategy

        class NoRest(GroupStrategy):
            name = "no-rest"
            summary = "cannot go on"

            def rest(self, plan, chosen, request, epoch):
                raise KeyError("rest")
    """,
    "plain": """
        from packer_cli.loader.formats.base import Batch, Format
        FORMAT = Format(adapt=lambda micro: Batch({"pack": micro.pack.pack_id}))
    """,
    "lengths_of": """
        from packer_cli.export.job import Format

        class Lengths(Format):
            def write_part(self, job, part, sink):
                return {"tokens": job.row_tokens()[part.first : part.stop].tolist()}

            def finish(self, job, parts, ranges, sink):
                with sink.file("lengths.txt") as file:
                    file.write(" ".join(str(n) for part in parts for n in part["tokens"]).encode())
    """,
    "report_shape": """
        from packer_cli.corpus.records.base import Shape
        from packer_cli.corpus.types import Document

        def parse(record, line):
            return Document("text", line, record["title"] + record["body"])

        SHAPE = Shape((("title", "body"),), (), parse)
    """,
}


def install(folder: Path, version: str = "1.0", name: str = "my-hbpack", points: dict | None = None) -> Path:
    """A package as pip leaves it, with the code of docs/extending.md."""
    for block in read_blocks("docs/extending.md"):
        if block.file.endswith(".py"):
            source = block.source.replace("njit(cache=True)", "njit")
            (folder / Path(block.file).name).write_text(source, encoding="utf-8")
    for module, source in MODULES.items():
        lines = source.strip("\n").splitlines()
        margin = len(lines[0]) - len(lines[0].lstrip())
        (folder / f"{module}.py").write_text("\n".join(line[margin:] for line in lines), encoding="utf-8")
    facts = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    groups = (points or POINTS).items()
    lines = [f"[hbpack.{kind}]\n" + "".join(f"{a} = {b}\n" for a, b in names.items()) for kind, names in groups]
    (facts / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    return facts


def forget() -> None:
    """As in a new process."""
    from packer_cli.corpus.records.shapes import SHAPES
    from packer_cli.export.formats import FORMATS as EXPORTS
    from packer_cli.loader.formats import FORMATS
    from packer_cli.plan.packing import REGISTRY
    from packer_cli.plan.strategies.registry import STRATEGIES

    for registry in (SHAPES, EXPORTS, FORMATS, REGISTRY, STRATEGIES):
        registry._others.clear()
