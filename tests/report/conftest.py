"""A packed set, a model, and pages made of them."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

import pytest

from packer_cli.cli.main import main
from tests.cli.test_simulate import CONFIG
from tests.cli_runner import Done, run

GROUPS = ("--groups", "1k:1,8k:4", "--gpus", 8)


class Table(NamedTuple):
    caption: str
    header: list[str]
    rows: list[list[str]]
    own: list[int]
    """Rows that are marked."""


class Reader(HTMLParser):
    """What a page holds: scripts, tables, addresses, ids, text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.tables: list[Table] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.policy = ""
        self.text: list[str] = []
        self._script: dict[str, str | None] | None = None
        self._into: list[str] | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if "id" in given:
            self.ids.append(given["id"])
        self.addresses += [value for name, value in attrs if name in ("href", "src", "action", "data")]
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"]
        if tag == "script":
            self._script = given
            self.scripts.append((given, ""))
        elif tag == "table":
            self.tables.append(Table("", [], [], []))
        elif tag == "tr" and self.tables:
            if given.get("class") == "own":
                self.tables[-1].own.append(len(self.tables[-1].rows))
            self.tables[-1].rows.append([])
        elif tag in ("td", "th"):
            self._into = self.tables[-1].rows[-1]
            self._into.append("")
        elif tag == "caption":
            self._into = []

    def handle_endtag(self, tag):
        if tag == "script":
            self._script = None
        elif tag in ("td", "th", "caption"):
            if tag == "caption":
                self.tables[-1] = self.tables[-1]._replace(caption="".join(self._into or []))
            self._into = None
        elif tag == "thead":
            self.tables[-1].header.extend(self.tables[-1].rows.pop())

    def handle_data(self, data):
        if self._script is not None:
            given, code = self.scripts[-1]
            self.scripts[-1] = (given, code + data)
        elif self._into is not None:
            if self.tables[-1].rows and self._into is self.tables[-1].rows[-1]:
                self._into[-1] += data
            else:
                self._into.append(data)
        if self._script is None:
            self.text.append(data)

    def table(self, caption: str) -> Table:
        (found,) = (table for table in self.tables if table.caption.startswith(caption))
        return found

    def comparison(self) -> Table:
        (found,) = (table for table in self.tables if " tokens; groups " in table.caption)
        return found

    def data(self, name: str):
        (code,) = (code for given, code in self.scripts if given.get("id") == name)
        return json.loads(code)


class Page(NamedTuple):
    done: Done
    path: Path
    html: str
    reader: Reader


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """`hbpack report ARGUMENTS`, and the page that it wrote."""

    def make(*arguments: object) -> Page:
        path = tmp_path_factory.mktemp("page") / "report.html"
        done = run(main, "report", *arguments, "-o", path)
        assert done.code == 0, done.stderr
        html = path.read_text(encoding="utf-8")
        return Page(done, path, html, Reader(html))

    return make


@pytest.fixture(scope="session")
def packed(tmp_path_factory, repo) -> Path:
    """Some chats and all journals of the bundled sample, from two sources."""
    folder, sample = tmp_path_factory.mktemp("packed"), repo / "examples" / "sample"
    lines = (sample / "chats.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "chats.jsonl").write_text("".join(lines[:400]), encoding="utf-8")
    done = run(
        main, "pack", folder / "chats.jsonl", sample / "journals.jsonl", "--tokenizer", sample / "tokenizer",
        *GROUPS, "--workers", 1, "--output", folder / "out",
    )  # fmt: skip
    assert done.code == 0, done.stderr
    return folder / "out"


@pytest.fixture(scope="session")
def gpu(tmp_path_factory):
    """A small model on a slow GPU, so that attention and tokens count beside what is constant."""
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(CONFIG))
    return ("--model", path, "--gpu", "h100:flops=1e12")


@pytest.fixture(scope="session")
def predicted(report, packed, gpu) -> Page:
    """The page of the packed set with everything on it."""
    return report(packed, *gpu, "--workers", 1)
