"""Where the benchmarks write their tables."""

from __future__ import annotations

import re

import pytest

from tests.benchmark.report import PAGES, write_section


def test_every_benchmark_has_one_section(repo):
    text = "\n".join(path.read_text(encoding="utf-8") for path in PAGES.glob("*.md"))
    source = (repo / "tests" / "benchmark" / "__main__.py").read_text(encoding="utf-8")
    names = re.findall(r'^    "([a-z-]+)": \w+\.run,$', source, re.MULTILINE)
    assert sorted(re.findall(r"<!-- begin: (\S+) -->", text)) == sorted([*names, "train"])
    assert re.findall(r"<!-- begin: (\S+) -->", text) == re.findall(r"<!-- end: (\S+) -->", text)


def test_a_section_is_replaced_on_its_page(tmp_path):
    (tmp_path / "a.md").write_text("A\n<!-- begin: one -->\nold\n<!-- end: one -->\nB\n")
    (tmp_path / "b.md").write_text("C\n")
    write_section("one", "new", tmp_path)
    assert (tmp_path / "a.md").read_text() == "A\n<!-- begin: one -->\nnew\n<!-- end: one -->\nB\n"
    assert (tmp_path / "b.md").read_text() == "C\n"
    with pytest.raises(ValueError, match="needs one <!-- begin: two -->"):
        write_section("two", "new", tmp_path)
