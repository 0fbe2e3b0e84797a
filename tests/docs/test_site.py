"""Every page can be found: in the navigation of the site, and from the README."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from tests.docs.blocks import GENERATED, ROOT, pages

PAGES = {*pages(), *(f"docs/{name}" for name in GENERATED)}


def paths_of(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for each in nav.values() if isinstance(nav, dict) else nav:
            yield from paths_of(each)


def test_the_navigation_has_every_page_once():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(paths_of(site["nav"])) == sorted([*PAGES, "CHANGELOG.md", "CONTRIBUTING.md"])


def links(name: str) -> set[str]:
    return set(re.findall(r"\]\(([^)#]+\.md)", (ROOT / name).read_text(encoding="utf-8")))


def test_the_readme_links_every_page():
    """All but the tables of the benchmarks, which the page of the benchmarks links."""
    tables = {page for page in PAGES if page.startswith("docs/benchmarks/")}
    assert {page for page in links("README.md") if page.startswith("docs/")} == PAGES - tables - {"README.md"}
    assert tables <= {f"docs/{page}" for page in links("docs/benchmarks.md")}
