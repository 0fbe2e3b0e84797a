"""The code blocks of README.md and docs/, and the marks above them.

A mark is an HTML comment, which readers do not see: `<!-- not run: needs Slurm -->` for a block that CI cannot run,
`<!-- ranks: 2 -->` for a page whose Python runs in two processes of one group, and `<!-- file: train.py -->` for a
block that readers save in this file and that no test runs by itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
LANGUAGES = {
    "bash": "run, command by command",
    "console": "run; the output must be what is printed",
    "python": "run, one block of a page after another",
    "yaml": "parsed",
    "json": "parsed",
    "toml": "parsed",
    "text": "output, trees and formulas",
}
"""Of a block, and what a test does with it."""

GENERATED = ("cli.md", "loader-api.md")
MARK = re.compile(r"<!-- (not run: .+|ranks: \d+|file: \S+) -->")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    """Of its first line of code, from 1."""
    language: str
    source: str
    mark: str
    """What the comment above it says, or an empty string."""

    @property
    def reason(self) -> str:
        """Why it is not run, or an empty string."""
        return self.mark.removeprefix("not run: ") if self.mark.startswith("not run: ") else ""

    @property
    def file(self) -> str:
        """Where readers save it, or an empty string."""
        return self.mark.removeprefix("file: ") if self.mark.startswith("file: ") else ""

    def save(self, folder: Path) -> None:
        """Save it as readers do."""
        path = folder / self.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.source, encoding="utf-8")

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """The pages that people write."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path.relative_to(ROOT).as_posix() for path in found if path.name not in GENERATED]


def read_blocks(page: str) -> list[Block]:
    """The blocks of a page, in order."""
    found = []
    mark = ""
    for token in MarkdownIt().parse((ROOT / page).read_text(encoding="utf-8")):
        if token.type == "fence":
            assert token.map is not None
            found.append(Block(page, token.map[0] + 2, token.info.strip(), token.content, mark))
        marked = MARK.search(token.content) if token.type == "html_block" else None
        mark = marked[1] if marked else ""
    return found


def linked_scripts(page: str) -> list[str]:
    """The scripts of examples/ that a page tells its readers to save."""
    return re.findall(r"\]\([./]*examples/(\w+\.(?:py|sh))\)", (ROOT / page).read_text(encoding="utf-8"))


def num_ranks(page: str) -> int:
    """The processes that run a page's Python."""
    marked = re.search(r"<!-- ranks: (\d+) -->", (ROOT / page).read_text(encoding="utf-8"))
    return int(marked[1]) if marked else 1
