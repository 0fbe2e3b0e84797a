"""The page: its numbers are those of the other commands, it needs nothing from outside, and it says what it lacks."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from html import unescape

import pytest

from packer_cli.cli.main import main
from packer_cli.commands.report import GIVE_STRATEGIES
from packer_cli.report.page import Page, Section, render
from packer_cli.sizes import ratio
from tests.cli_runner import run
from tests.mixed_lengths import save_lengths
from tests.report.conftest import GROUPS, Reader

GIVE = "--model CONFIG.JSON --gpu NAME (such as h100), or --profile FILE of hbpack profile"


@pytest.fixture(scope="module")
def lengths(tmp_path_factory):
    return save_lengths(tmp_path_factory.mktemp("lengths") / "lengths.npy")


def stats(*arguments):
    done = run(main, "stats", *arguments, "--json")
    assert done.code == 0, done.stderr
    return json.loads(done.stdout)


def check_figures(page, expected):
    """The JSON inside the page and its tables hold the figures of `hbpack stats --json`."""
    found = page.reader.data("figures")
    found.pop("simulation", None)
    assert found == expected
    table = page.reader.table("Balance and padding")
    keys = ("abr", "abr_bound", "dbr", "pr", "cr", "packs_lower_bound", "num_packs", "num_iterations", "num_samples")
    figures = [expected["overall"], expected["baseline"], *expected["groups"]]
    assert table.header == [
        "",
        "all",
        *("baseline" if "capacity" not in each else each["name"] for each in figures[1:]),
    ]
    rows = [row[1:] for row in table.rows]
    for key in keys:
        values = [each[key] for each in figures]
        assert [f"{value:,}" if isinstance(value, int) else ratio(value) for value in values] in rows, key
    assert [f"{each['imbalance']:.3f}" for each in figures] in rows


def test_the_numbers_of_a_packed_set_are_those_of_stats_and_simulate(predicted, packed, gpu):
    check_figures(predicted, stats(packed))
    done = run(main, "simulate", packed, *gpu, "--json")
    assert predicted.reader.data("figures")["simulation"] == json.loads(done.stdout)


def test_the_numbers_of_a_plan(report, packed):
    page = report(packed / "plan.arrow", "--strategies", "none")
    check_figures(page, stats(packed / "plan.arrow"))
    assert page.done.stderr.startswith(f"wrote '{page.path}', ")


def test_the_numbers_of_lengths(report, lengths):
    options = (*GROUPS, "--balance", "window:4", "--cost", "1,500")
    page = report(lengths, *options, "--strategies", "none")
    expected = stats(lengths, *options)
    check_figures(page, expected)
    table = page.reader.table("Balance and padding")
    assert ["CBR: the same by --cost", ratio(expected["overall"]["cbr"])] in [row[:2] for row in table.rows]
    alone = report(lengths)
    assert alone.reader.data("figures") == stats(lengths)
    assert [table.caption for table in alone.reader.tables][-1] == "Lengths, in tokens"
    assert f"add --groups auto --gpus N with your model and GPU ({GIVE})" in alone.html


def test_the_table_of_strategies_is_that_of_compare(predicted, packed, gpu):
    done = run(main, "compare", packed, *GROUPS, "--strategies", "all", *gpu, "--workers", 1, "--json")
    rows = {row["name"]: row for row in json.loads(done.stdout)["rows"]}
    table = predicted.reader.comparison()
    assert table.rows[0][0] == "balanced this plan"
    assert table.own == [0]
    shown = {row[0].removesuffix(" this plan"): dict(zip(table.header, row, strict=True)) for row in table.rows}
    assert shown.keys() >= rows.keys()
    for name, row in rows.items():
        overall = row["overall"]
        for header, key in {"ABR": "abr", "PR": "pr", "CR": "cr", "ABR bound": "abr_bound"}.items():
            assert shown[name][header] == ratio(overall[key]), (name, header)
        assert shown[name]["length mix"] == f"{overall['length_mix_spread']:.3f}"
    balances = [name for name in shown if name.startswith("--balance ")]
    assert balances[:2] == ["--balance none+refine", "--balance window:4+refine"]


def test_options_hold_for_all_strategies_as_in_compare(report, lengths):
    options = (lengths, *GROUPS, "--balance", "window:4", "--strategies", "balanced,naive", "--workers", 1)
    table = report(*options).reader.comparison()
    assert [row[0] for row in table.rows[:3]] == ["balanced this plan", "naive", "--balance none+refine"]
    rows = json.loads(run(main, "compare", *options, "--json").stdout)["rows"]
    assert [row[table.header.index("ABR")] for row in table.rows[:2]] == [ratio(row["overall"]["abr"]) for row in rows]


def test_the_page_stands_alone(predicted):
    reader = predicted.reader
    assert len(predicted.html.encode()) < 2e6
    assert len(reader.ids) == len(set(reader.ids))
    assert all(address.startswith("#") or address == "data:," for address in reader.addresses)
    assert {address[1:] for address in reader.addresses if address[0] == "#"} <= set(reader.ids)
    assert "url(" not in predicted.html.split("</style>")[0]
    rules = dict(rule.strip().split(" ", 1) for rule in reader.policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert {"connect-src", "font-src", "frame-src"}.isdisjoint(rules)
    code = [text for given, text in reader.scripts if "type" not in given]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in code]
    assert rules["script-src"].split() == [f"'sha256-{each}'" for each in hashes]


def test_each_chart_has_a_place_a_text_and_a_table(predicted):
    charts = predicted.reader.data("specs")["charts"]
    assert len(charts) == 12
    captions = [table.caption for table in predicted.reader.tables]
    for name in charts:
        assert f"chart-{name}" in predicted.reader.ids
        (label,) = re.findall(f'id="chart-{name}" role="img" aria-label="([^"]+)"', predicted.html)
        assert label.split(".")[0] in captions


def test_the_same_set_gives_the_same_page(report, packed, gpu, predicted):
    assert report(packed, *gpu, "--workers", 2).html == predicted.html


def test_what_is_left_out_is_said(report, packed):
    page = report(packed, "--strategies", "none")
    assert f"Times are predicted with {GIVE}." in page.html
    assert GIVE_STRATEGIES in page.html
    assert "Take " not in page.html
    assert "chart-timeline-after" not in page.reader.ids


def test_text_of_users_is_text():
    evil = '</script><img src=x onerror=alert(1)>"'
    html = render(
        Page(
            title=evil, summary=evil, tiles=(), next_steps=(evil,), values={evil: evil},
            sections=(Section(name="a", title=evil, text=evil, missing=evil),),
        )
    ).decode()  # fmt: skip
    reader = Reader(html)
    assert "<img src=x" not in html
    assert reader.data("figures") == {evil: evil}
    assert len(reader.scripts) == 6


def test_errors_say_what_to_do(packed, lengths, tmp_path):
    other = tmp_path / "notes.html"
    other.write_text("<p>mine</p>")
    for arguments, error in (
        ((packed, "-o", other), f"--output: '{other}' already exists and is not a report; name another file"),
        ((packed, "-o", tmp_path), f"--output: '{tmp_path}' is a folder; name a file, such as report.html"),
        ((packed, "--gpu", "h100"), f"hbpack report needs {GIVE}; --model is missing"),
        (
            (packed, "--balance", "sort"),
            "--balance is for planning lengths, which needs --groups and --gpus; give them, or leave --balance out",
        ),
        ((lengths, *GROUPS, "--strategies", "best"), "--strategies: unknown strategy 'best'; known: all, balanced"),
        ((tmp_path / "no",), f"'{tmp_path / 'no'}' does not exist; name a packed data set, a token store or a file"),
    ):
        done = run(main, "report", *(arguments if "-o" in arguments else (*arguments, "-o", tmp_path / "r.html")))
        assert done.code == 2
        assert done.stderr.splitlines()[-1].startswith(f"error: {error}")
    assert other.read_text() == "<p>mine</p>"
    assert not (tmp_path / "r.html").exists()


def test_a_page_is_written_again(report, packed):
    page = report(packed, "--strategies", "none")
    done = run(main, "report", packed, "--strategies", "none", "-o", page.path)
    assert (done.code, page.path.read_text(encoding="utf-8")) == (0, page.html)


def advice(page):
    """The sentences of what to try next."""
    part = page.html.split('id="advice">')[1].split("</ul>")[0]
    return [unescape(each) for each in re.findall("<li>(.*)</li>", part)]


@pytest.mark.parametrize(
    ("options", "begin"),
    [
        (
            ("--balance", "none"),
            r"GPUs wait for \d+\.\d% of their attention time, and \d+\.\d% is the least .*\. --balance refine sorts",
        ),
        (("--align", 128), r"\d+\.\d% of the rows is padding, most of it \(\d+\.\d%\) because of --align"),
        (
            ("--groups", "1k", "--overflow", "drop"),
            r"--overflow drop: 50 samples are longer than 1,024 tokens and left",
        ),
        (("--groups", "4k:8"), r"\d+ samples longer than 4k tokens were cut"),
        (("--groups", "8k:8"), r"All tokens take part in sequence-parallel communication, and \d+% of the samples"),
        ((), "Nothing on this page asks for a change"),
    ],
)
def test_advice_follows_from_the_figures(report, lengths, options, begin):
    found = advice(report(lengths, *GROUPS, *options, "--strategies", "none"))
    assert re.match(begin, found[0])
    assert found[-1] == f"To see how long an epoch takes, and what each GPU does, give {GIVE}."


def test_advice_names_what_would_be_better(report, lengths, gpu):
    naive = report(
        lengths,
        "--groups",
        "8k:4",
        "--gpus",
        8,
        "--strategy",
        "naive",
        "--strategies",
        "balanced",
        *gpu,
        "--workers",
        1,
    )
    found = advice(naive)
    assert re.match(r"GPUs wait for \d+\.\d% of their attention time; with balanced that is \d\.\d%\.", found[0])
    assert any(each.startswith("Take ") for each in found)


def test_a_rebalanced_set_is_shown_as_it_is_now(report, packed, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(packed, out, symlinks=True)
    assert run(main, "rebalance", out, "--gpus", 4).code == 0
    page = report(out, "--strategies", "none")
    check_figures(page, stats(out))
    assert "balanced on 4 GPUs" in page.html


def test_a_set_without_its_tokens(report, packed, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(packed, out, symlinks=True)
    shutil.rmtree(out / "tokens")
    page = report(out, "--strategies", "balanced,naive", "--workers", 1)
    check_figures(page, stats(out))
    table = page.reader.comparison()
    assert [row[0] for row in table.rows[:2]] == ["balanced this plan", "naive"]
    assert "source mix" not in table.header  # That of the others is not known.
    assert page.reader.table("Samples by length").header == ["tokens of a sample", "all samples"]
