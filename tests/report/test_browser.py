"""The page in a real browser: every chart is drawn, nothing is asked of a network, nothing overflows."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import packer_cli as hbpack
from tests.report import browser

WIDTHS = {"phone": 390, "laptop": 1280, "wide": 1920}
DRAWN = "document.readyState === 'complete' && document.documentElement?.dataset.drawn === 'yes'"
COLORS = (
    (False, "rgb(246, 247, 249)", "rgb(11, 99, 176)"),
    (True, "rgb(18, 21, 26)", "rgb(90, 169, 238)"),
)
"""Whether it is dark, the color of the page, and that of the points of a chart."""
POINT = '#chart-work-after path[fill="var(--series-1)"]'
SHOTS = os.environ.get("HBPACK_SHOTS")
"""A folder for screenshots, to look at."""


@pytest.fixture(scope="module")
def chromium():
    path = browser.find()
    if path is None:
        pytest.skip(f"no Chromium is installed ({' or '.join(browser.NAMES)})")
    with browser.running(path) as running:
        yield running


def opened(chromium, page, width):
    tab = chromium.tab()
    tab.look(width, 900)
    tab.open(page.path)
    tab.wait_for(DRAWN)
    return tab


@pytest.fixture(scope="module")
def tab(chromium, predicted):
    """The page as a laptop shows it."""
    return opened(chromium, predicted, WIDTHS["laptop"])


@pytest.mark.parametrize("width", ["phone", pytest.param("laptop", marks=pytest.mark.slow), "wide"])
def test_all_charts_are_drawn_and_nothing_else_is_needed(chromium, predicted, width):
    tab = opened(chromium, predicted, WIDTHS[width])
    charts = predicted.reader.data("specs")["charts"]
    for dark, paper, fill in COLORS:
        tab.look(WIDTHS[width], 900, dark=dark)
        assert tab.evaluate("document.documentElement.scrollWidth") == WIDTHS[width]
        for name in charts:
            place = f"document.getElementById('chart-{name}')"
            assert tab.evaluate(f"{place}.dataset.drawn") == "yes"
            marks = f"{place}.querySelectorAll('svg [class*=mark-] path[d], svg .mark-text text').length"
            assert tab.evaluate(marks) > 3, name
            inside = f"{place}.querySelector('svg').getBoundingClientRect().width <= {place}.clientWidth + 1"
            assert tab.evaluate(inside), name
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == paper
        assert tab.evaluate(f"getComputedStyle(document.querySelector('{POINT}')).fill") == fill
        if SHOTS:
            tab.screenshot(Path(SHOTS) / f"{width}-{'dark' if dark else 'light'}.png")
    assert tab.complaints == []
    assert tab.requests == [predicted.path.as_uri()]


OUTSIDE = """[...document.querySelectorAll('.chart')].flatMap(chart => {
    const frame = chart.querySelector('svg').getBoundingClientRect();
    const isOutside = box => box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1
        || box.bottom > frame.bottom + 1;
    return [...chart.querySelectorAll('svg text')]
        .filter(text => text.textContent && isOutside(text.getBoundingClientRect()))
        .map(text => chart.id + ': ' + text.textContent);
})"""
"""Texts that their charts cut off."""
GAPS = """(() => {
    const ends = new Map();
    for (const tile of document.querySelectorAll('.tiles > div'))
        ends.set(tile.offsetTop, tile.offsetLeft + tile.offsetWidth);
    return [...ends.values()].filter(end => Math.abs(end - Math.max(...ends.values())) > 1).length;
})()"""
"""Rows of tiles that end before the others."""


@pytest.mark.parametrize("groups", [pytest.param("8k:1", marks=pytest.mark.slow), "512:1,1k:1,2k:2,8k:4"])
def test_no_text_is_cut_off_and_tiles_fill_their_rows(chromium, report, gpu, tmp_path, groups):
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("".join(f"{20 + 37 * i % 900}\n{150 + 411 * i % 8000}\n" for i in range(300)))
    page = report(lengths, "--groups", groups, "--gpus", 8, *gpu, "--strategies", "naive,hbp", "--workers", 1)
    tab = opened(chromium, page, 390)
    assert tab.evaluate("document.querySelectorAll('.role-legend-label text').length") > 10
    tab.wait_for(f"{OUTSIDE}.length === 0")
    # A window that changes its size is as good as a new one.
    for width in (1400, 820, 390, 1400):
        tab.look(width, 900)
        tab.wait_for(f"{OUTSIDE}.length === 0")
        assert tab.evaluate(f"{GAPS}") == 0
        assert tab.evaluate("document.querySelectorAll('.role-legend-label text').length") > 10


def test_tiles_of_lengths_fill_their_rows(chromium, report, tmp_path):
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("5\n")
    tab = opened(chromium, report(lengths), 1400)
    for width in (1400, 820, 390):
        tab.look(width, 900)
        assert tab.evaluate("document.querySelectorAll('.tiles > div').length") == 5
        assert tab.evaluate(f"{GAPS}") == 0


def test_on_paper_it_is_light_and_whole(tab):
    tab.look(1280, 900, dark=True, media="print")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    label = "getComputedStyle(document.querySelector('.role-axis-label text')).fill"
    assert tab.evaluate(label) == "rgb(84, 93, 107)"


def test_the_keyboard_reaches_links_and_tables(tab):
    tab.look(WIDTHS["laptop"], 900)
    tab.call("Page.bringToFront")
    seen = []
    for _ in range(60):
        for kind in ("keyDown", "keyUp"):
            tab.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        seen.append(tab.evaluate("document.activeElement.tagName + ' ' + document.activeElement.className"))
    assert seen[0] == "A skip"
    assert seen.count("SUMMARY ") >= 12
    assert any(each.startswith("DIV scroll") for each in seen)


def test_what_a_page_would_load_is_blocked(chromium, predicted, tmp_path):
    page = tmp_path / "evil.html"
    evil = "<script>window.ran = 1</script><img src='https://example.invalid/a.png'></body>"
    page.write_text(evil.join(predicted.html.rsplit("</body>", 1)), encoding="utf-8")
    tab = chromium.tab()
    tab.open(page)
    tab.wait_for(DRAWN)
    assert tab.evaluate("window.ran") is None
    assert len(tab.complaints) == 2
    assert all("Content Security Policy" in each for each in tab.complaints)


@pytest.mark.parametrize("kind", ["lengths", "without times"])
def test_smaller_pages_are_drawn_too(chromium, report, packed, tmp_path, kind):
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("5\n")
    page = report(lengths) if kind == "lengths" else report(packed, "--strategies", "none")
    tab = opened(chromium, page, 390)
    assert tab.complaints == []
    assert tab.evaluate("document.querySelectorAll('.chart:not([data-drawn])').length") == 0
    assert tab.evaluate("document.documentElement.scrollWidth") == 390


def test_a_notebook_draws_each_chart(chromium, predicted, packed, gpu):
    """As Jupyter does: with no style sheet and no look but the chart's own."""
    tab = opened(chromium, predicted, WIDTHS["laptop"])
    found = hbpack.report(packed, model=gpu[1], gpu=gpu[3], strategies="naive", workers=1)
    for name, chart in found.charts.items():
        options = '{mode: "vega-lite", renderer: "svg", actions: false, ast: true}'
        code = f"""(async () => {{
            document.body.innerHTML = "";
            document.querySelectorAll("style").forEach(style => style.remove());
            await vegaEmbed(document.body, {json.dumps(chart.vega_lite())}, {options});
            const drawn = document.querySelector("svg");
            return [drawn.querySelectorAll("[class*=mark-] path[d]").length, drawn.outerHTML.includes("var(")];
        }})()"""
        marks, has_variables = tab.evaluate(code)
        assert marks > 3, name
        assert not has_variables, name
        if SHOTS:
            tab.screenshot(Path(SHOTS) / f"notebook-{name}.png")
