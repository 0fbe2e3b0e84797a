"""The rows of a comparison, their order, and the table that holds them."""

from __future__ import annotations

import pickle
import re
import sys
from types import SimpleNamespace

import pytest

from packer_cli.cli.console import print_tables
from packer_cli.compare.rows import BALANCES, FORM, TIME_LIMIT, default_rows, parse_rows, strategy_rows, with_baselines
from packer_cli.config import PlanConfig
from packer_cli.config.gpu_model import load_gpu_model
from packer_cli.config.groups import parse_group
from packer_cli.config.resolve import resolve
from packer_cli.errors import ConfigError
from packer_cli.plan.kernels.balance import parse_balance
from packer_cli.plan.packing import REGISTRY
from packer_cli.plan.strategies.flexsp.strategy import MixedDegrees
from packer_cli.plan.strategies.protocol import Strategy
from packer_cli.plan.strategies.registry import STRATEGIES
from packer_cli.tables.compare import COLUMNS, parse_sort, sort_rows
from packer_cli.tables.table import Table


def config(**options):
    return resolve(PlanConfig(**{"groups": "1k:1,8k:4", "gpus": 8, **options}))


def names(rows):
    return [row.name for row in rows]


def test_the_default_rows_hold_every_packing_and_every_balance():
    rows = default_rows(config())
    packings = [row.config.packing.partition(":")[0] for row in rows if row.kind == "packing"]
    assert packings == list(REGISTRY)
    of_bfs = [
        parse_balance(row.config.balance) for row in rows if row.config.packing == "bfs" and row.config.groups[1:]
    ]
    assert sorted(map(repr, of_bfs)) == sorted({repr(parse_balance(balance)) for balance in BALANCES})
    assert names(rows)[-4:] == [
        "isf/none@longest",
        "sorted/sort@longest",
        "padded:order=sorted/sort@longest",
        "padded:batch=1/none@longest",
    ]
    (padded,) = (row for row in rows if row.name == "padded/none@longest")
    assert padded.note == "random batches, as large as fit, padded to their longest sample"
    assert len(set(names(rows))) == len(rows)


def test_the_names_of_the_default_rows_make_them_again():
    for base in (config(), config(packing="isf:rounds=8,threshold=0.9", balance="window:3"), config(groups="4k:2")):
        rows = default_rows(base)
        again = parse_rows(",".join(names(rows)), base)
        assert [(row.name, row.config) for row in again] == [(row.name, row.config) for row in rows]


def test_what_a_packing_needs_is_given_and_noted():
    rows = {row.config.packing: row for row in default_rows(config(overflow="drop")) if row.kind == "packing"}
    assert rows["wrap"].name == "wrap@longest"
    assert rows["wrap"].note == "wrap needs exactly one group"
    assert [str(group) for group in rows["wrap"].config.groups] == ["8k:4"]
    assert rows["bfd-split"].config.overflow == "split"
    assert rows["bfd-split"].note == "bfd-split needs --overflow split"
    assert {row.config.overflow for name, row in rows.items() if name != "bfd-split"} == {"drop"}
    assert names(parse_rows("wrap", config(groups="8k:4"))) == ["wrap"]


def test_a_row_for_each_strategy():
    rows = strategy_rows("all", config(balance="window:2"))
    assert [row.name for row in rows if row.is_own] == ["balanced"]
    assert {row.config.balance for row in rows[:3]} == {"window:2"}
    found = {row.name: (row.config.packing, row.config.balance, len(row.request.groups)) for row in rows}
    assert found == {
        "balanced": ("bfs", "window:2", 2),
        "hbp": ("isf", "window:2", 2),
        "naive": ("isf", "window:2", 1),
        "longalign-packing": ("random", "none", 1),
        "longalign-sorted": ("padded:order=sorted,batch=1", "sort", 1),
        "wlb": ("delay", "refine", 1),
        "fixed-4d": ("greedy", "refine", 1),
        "plain-4d": ("original:cut=row", "refine", 1),
        "trl-bfd": ("bfd:chunk=1000", "none", 1),
        "axolotl": ("ffs:chunk=100000", "none", 1),
        "padded": ("padded", "none", 1),
    }
    assert [row.request.max_samples for row in rows if row.name == "axolotl"] == [200]
    assert names(strategy_rows("naive,hbp", config())) == ["naive", "hbp"]
    assert names(strategy_rows("padded,hbp", config())) == ["padded", "hbp"]
    with pytest.raises(ConfigError) as error:
        strategy_rows("hbp,best", config())
    known = ", ".join(("all", *STRATEGIES))
    assert str(error.value) == f"--strategies: unknown strategy 'best'; known: {known}"


def test_flexsp_differs_from_the_default_on_the_same_groups(monkeypatch):
    """Only what it plans by differs."""
    known = {"groups": tuple(map(parse_group, ("1k:1", "2k:2"))), "group_costs": ((1.0, 1.0, 1.0),) * 2}
    monkeypatch.setattr(MixedDegrees, "predict", lambda *_: known)
    rows = strategy_rows("balanced,flexsp:all", config(groups="1k:1,2k:2"))
    assert names(rows) == ["balanced", "flexsp:all"]
    assert rows[0].config.groups == rows[1].config.groups


def test_every_strategy_that_is_named_has_a_row(monkeypatch):
    """Those that share code and options, too; a packing that plans as one of them has none."""
    monkeypatch.setattr(Strategy, "predict", lambda self, options, *_: {"groups": options.groups})
    given = ["fcp", "bytescale", "megatron", "dp-balanced", "naive", "balanced"]
    base = config(global_tokens=1 << 20, lockstep="1", model="examples/sample/model", gpu="h100")
    assert names(strategy_rows(",".join(given), base)) == given
    assert {"fcp", "bytescale", "megatron"} <= set(names(strategy_rows("all", base)))
    rows = strategy_rows("naive,naive", base)
    assert names(rows) == ["naive"]
    model = load_gpu_model(base.given, 8, "a test")
    assert names(with_baselines(rows, base, model)[0]) == ["naive", "naive", "padded/none@longest"]  # At its best.


def test_rows_of_other_code_take_no_packing_from_the_options():
    rows = strategy_rows("padded,trl-bfd,hbp", config(packing="ffd", balance="sort"))
    assert [(row.config.packing, row.config.balance) for row in rows] == [
        ("padded", "none"),
        ("bfd:chunk=1000", "none"),
        ("ffd", "sort"),
    ]


def test_only_a_packing_that_the_user_did_not_name_gets_a_time_limit():
    limited = [row.name for row in default_rows(config()) if row.may_take_longest]
    assert limited == [f"ilp:time_limit={TIME_LIMIT / 2:g}"]
    assert {row.config.packing for row in default_rows(config(packing="ilp")) if row.may_take_longest} == {"ilp"}
    assert names(parse_rows("ilp", config())) == ["ilp"]


def test_rows_are_read_with_what_they_leave_out():
    rows = parse_rows("isf:rounds=10,threshold=0.9/none, bfd ,/window:8+refine,none@longest,/sort+refine", config())
    assert [(row.config.packing, row.config.balance, len(row.config.groups)) for row in rows] == [
        ("isf:rounds=10,threshold=0.9", "none", 2),
        ("bfd", "refine", 2),
        ("bfs", "window:8+refine", 2),
        ("none", "refine", 1),
        ("bfs", "sort+refine", 2),
    ]
    assert names(rows) == ["isf:rounds=10,threshold=0.9/none", "bfd", "bfs/window:8+refine", "none@longest", "bfs"]
    assert names(parse_rows("bfd,isf,bfd/refine,isf:rounds=300", config())) == ["bfd", "isf"]


KNOWN = ", ".join(REGISTRY)
HINT = "a balance follows a slash: /window:8"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"row '' is not {FORM}"),
        ("isf,,bfd", f"row '' is not {FORM}"),
        ("isf/", f"row 'isf/' is not {FORM}"),
        ("isf@short", f"row 'isf@short' is not {FORM}"),
        ("isf@", f"row 'isf@' is not {FORM}"),
        ("isf,magic", f"row 'magic': unknown packing algorithm 'magic'; known: {', '.join(REGISTRY)}"),
        (
            "window:8",
            f"row 'window:8': unknown packing algorithm 'window'; known: {KNOWN}; {HINT}",
        ),
        (
            "isf/best",
            "row 'isf/best': unknown balance 'best'; known: none, sort, window:K, each with +refine or without",
        ),
        (
            "isf:foo=1,bfd",
            "row 'isf:foo=1': packing 'isf' has no option 'foo=1'; known, with defaults: rounds=300, threshold=0.997",
        ),
        ("isf:rounds=0", "row 'isf:rounds=0': option 'rounds' must be at least 1 and at most 2147483647, got 0"),
    ],
)
def test_a_wrong_row(text, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(f'--algorithms: {message}')}$"):
        parse_rows(text, config())


def compared(name, **metrics):
    """A row with these metrics of all packs, or a failed one."""
    return SimpleNamespace(name=name, overall=SimpleNamespace(**metrics) if metrics else None)


def test_rows_are_sorted_by_a_column_and_failed_ones_come_last():
    rows = [
        compared("a", abr=0.2, cbr=None),
        compared("b"),
        compared("c", abr=0.1, cbr=None),
        compared("d", abr=0.2, cbr=None),
    ]
    assert [row.name for row in sort_rows(rows, parse_sort("abr"))] == ["c", "a", "d", "b"]
    assert [row.name for row in sort_rows(rows, parse_sort("-ABR"))] == ["a", "d", "c", "b"]
    assert sort_rows(rows, None) == tuple(rows)
    # A figure that no row has sorts nothing.
    assert [row.name for row in sort_rows(rows, parse_sort("cbr"))] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=list(STRATEGIES))
def test_the_packings_of_a_strategy_reach_the_process_of_a_row(strategy):
    packings = dict(strategy.packings())
    assert repr(pickle.loads(pickle.dumps(packings))) == repr(packings)  # Partial functions never equal each other.


def test_a_narrow_terminal_gets_all_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    header = ("", *(column.header for column in COLUMNS))
    rows = tuple((f"row {i}", *(f"{i}.{k}" for k in range(len(COLUMNS)))) for i in range(3))
    table = Table(title="A title", header=header, rows=rows)
    print_tables(table)
    piped = capsys.readouterr().out
    assert "…" not in piped
    assert len([line for line in piped.splitlines() if line.startswith(" row 1 ")]) == 1
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_tables(table)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40
    assert "…" not in "".join(lines)
    of_row = [line.split()[2:] for line in lines if line.startswith(" row 1")]
    assert len(of_row) > 2
    assert [cell for cells in of_row for cell in cells] == [*rows[1][1:]]
    assert sum("A title" in line for line in lines) == 1
