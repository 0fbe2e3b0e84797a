"""All contenders on both mixes: tables, and whether hbpack meets its targets."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from packer_cli.config import PlanConfig
from packer_cli.config.fields import default_of
from packer_cli.plan.build import build_plan
from packer_cli.plan.core.bounds import packs_lower_bound
from packer_cli.plan.core.check import check_plan
from packer_cli.plan.core.cut import make_pieces
from packer_cli.plan.packing import REGISTRY
from tests.benchmark.measure import ROOT, BenchmarkError
from tests.benchmark.peers.contenders import OURS, PEERS, names
from tests.benchmark.peers.worker import TOO_LONG
from tests.benchmark.plan import CAPACITY, MIX128K, mix128k, production_rules, short4k
from tests.benchmark.report import seconds, table, times, versions
from tests.benchmark.rival import PYTHON_VARIABLE

SIZES = (10_000, 100_000, 1_000_000)
MIXES = {"mix128k": (mix128k, CAPACITY), "short4k": (short4k, 4_096)}
ALGORITHMS = [
    name for name, algorithm in REGISTRY.items() if not algorithm.cut and name not in ("none", "padded", "bfd-split")
]
"""Those that pack whole samples as they are, several in a pack."""

_QUICK = 1.0
"""Seconds up to which a case is measured again in the later passes."""
_ROUNDS = 7
_FASTER = 5.0
_PACK_SECONDS = 0.15
_PLAN_SECONDS = 1.0
_NEAR = 0.001
_DEFAULT = f"{OURS}{default_of(PlanConfig.model_fields['packing'])}"

Case = tuple[str, int]
"""(mix, samples)"""


@dataclass
class _Result:
    """The result of one contender in one case."""

    seconds: list[float] = field(default_factory=list)
    packs: int = 0
    skipped: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


Results = dict[str, dict[Case, _Result]]


def run(work: Path, runs: int) -> str:
    """Measure, and return the text of the section."""
    cases, facts = _make_cases(work)
    results: Results = defaultdict(lambda: {case: _Result() for case in cases})
    found: dict[str, str] = {}
    missing: dict[str, str] = {}
    for number in range(runs):
        for name in names(ALGORITHMS):
            if name not in missing:
                print(f"peers: {name}, pass {number + 1}", file=sys.stderr)
                chosen = {
                    case: file
                    for case, file in cases.items()
                    if number == 0 or (results[name][case].seconds and results[name][case].median < _QUICK)
                }
                _measure(work, name, chosen, results, found, missing)
    plan_seconds = _plan_seconds(runs)
    parts = [_intro(found, missing, runs)]
    for mix, (_, capacity) in MIXES.items():
        lines = "\n".join(f"- {line}" for line in _targets(mix, results, facts, plan_seconds))
        parts.append(f"**{mix}, capacity {capacity:,}**\n\n{_table(mix, capacity, results, facts)}\n\n{lines}")
    return "\n\n".join(parts)


def _make_cases(work: Path) -> tuple[dict[Case, Path], dict[Case, tuple[int, int]]]:
    """Files of lengths by increasing size; for each case, the least possible number of packs, and the tokens."""
    cases, facts = {}, {}
    for mix, (make, capacity) in MIXES.items():
        for size in SIZES:
            lengths = make(size)
            cases[mix, size] = work / f"{mix}-{size}.npy"
            np.save(cases[mix, size], lengths)
            facts[mix, size] = int(packs_lower_bound(lengths, capacity)), int(lengths.sum(dtype=np.int64))
    return cases, facts


def _measure(
    work: Path,
    name: str,
    cases: dict[Case, Path],
    results: Results,
    found: dict[str, str],
    missing: dict[str, str],
) -> None:
    """Run one contender in its own process; adds to `results`, and to `found` (versions) or `missing` (why)."""
    file = work / "cases.json"
    file.write_text(json.dumps([(str(path), MIXES[mix][1]) for (mix, _), path in cases.items()]))
    pythons = [sys.executable]
    if not name.startswith(OURS) and os.environ.get(PYTHON_VARIABLE):
        pythons.insert(0, os.environ[PYTHON_VARIABLE])
    first: dict[str, str] = {}
    for python in pythons:
        command = [python, "-m", "tests.benchmark.peers.worker", name, str(file), "--rounds", str(_ROUNDS)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise BenchmarkError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        first = lines[0]
        if "missing" not in first:
            break
    else:
        missing[name] = first["missing"]
        return
    if first["version"]:
        found[name] = first["version"]
    for case, line in zip(cases, lines[1:], strict=True):
        result = results[name][case]
        result.skipped = line.get("skipped", "")
        if not result.skipped:
            if not (line["fits"] and line["all_once"]):
                raise BenchmarkError(f"{name} at {case}: not every sample is in one pack, or a pack is over capacity")
            result.seconds += line["seconds"]
            result.packs = line["packs"]


def _plan_seconds(runs: int) -> tuple[float, float]:
    """Median seconds of `build_plan` and `check_plan` with the production defaults, at the greatest size."""
    lengths = mix128k(SIZES[-1])
    rules = production_rules()
    pieces = make_pieces(lengths, np.arange(len(lengths), dtype=np.int64), CAPACITY, "split")
    plan = build_plan(pieces, rules)
    check_plan(plan)
    functions = (lambda: build_plan(pieces, rules), lambda: check_plan(plan))
    build, check = (statistics.median(_cpu_seconds(function) for _ in range(3 * runs)) for function in functions)
    return build, check


def _cpu_seconds(function: Callable[[], object]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def _intro(found: dict[str, str], missing: dict[str, str], runs: int) -> str:
    text = (
        f"Lengths: {MIX128K}; *short4k*, the short ones alone, at most 4,096. Each function takes lengths and returns "
        "packs in its own form. Each contender has its own process, and is compiled before; TRL's token lists hold "
        "nulls, so no token is moved. The figures are CPU time, which equals the wall time of an idle machine because "
        f"all of them use one core: the median of up to {_ROUNDS * runs} rounds (one round if it takes over "
        f"{_QUICK:.0f} s). Cases that take over {TOO_LONG:.0f} s, or are expected to, are left out. Every "
        "result was checked: each sample is in one pack, and no pack exceeds its capacity. *Over the bound* is the "
        "number of packs above the minimum possible (Martello and Toth's L2), at the three sizes. *To ours* is the "
        "time at the largest size that the contender managed, compared with the fastest of hbpack's that needs no "
        f"more packs. {versions(('numpy', 'numba'))}; {', '.join(sorted(set(found.values())))}."
    )
    absent = [
        f"- {name} is left out: it is not installed ({reason})."
        + (f" Run `{PEERS[name].install}`, if necessary in an environment of its own that {PYTHON_VARIABLE} names."
           if PEERS[name].install else "")
        for name, reason in missing.items()
    ]  # fmt: skip
    return "\n\n".join([text, "\n".join(absent)]) if absent else text


def _table(mix: str, capacity: int, results: Results, facts: dict[Case, tuple[int, int]]) -> str:
    rows = []
    for name, by_case in results.items():
        done = [size for size in SIZES if by_case[mix, size].seconds]
        if not done:
            continue
        result = by_case[mix, done[-1]]
        tokens = facts[mix, done[-1]][1]
        ours = _fastest(results, (mix, done[-1]), result.packs, is_ours=True)
        rows.append(
            [
                name,
                *(_time(by_case[mix, size]) for size in SIZES),
                f"{result.packs:,}" if done[-1] == SIZES[-1] else "-",
                " / ".join(f"{by_case[mix, size].packs - facts[mix, size][0]:+,}" for size in done),
                f"{1 - tokens / (result.packs * capacity):.2%}",
                f"{times(result.median, results[ours][mix, done[-1]].median)} {ours}" if ours else "-",
            ]
        )
    bounds = " / ".join(f"{facts[mix, size][0]:,}" for size in SIZES)
    header = [
        f"bound {bounds}", *(f"{size:,}" for size in SIZES), "packs", "over the bound", "PR", "to ours",
    ]  # fmt: skip
    return table(header, rows)


def _time(result: _Result) -> str:
    return seconds(result.median) if result.seconds else result.skipped


def _fastest(results: Results, case: Case, most_packs: float, is_ours: bool) -> str:
    """The fastest of hbpack's algorithms, or of the peers, with at most this many packs; empty if there is none."""
    able = [
        name
        for name, by_case in results.items()
        if name.startswith(OURS) == is_ours and by_case[case].seconds and by_case[case].packs <= most_packs
    ]
    return min(able, key=lambda name: results[name][case].median, default="")


def _targets(
    mix: str, results: Results, facts: dict[Case, tuple[int, int]], plan_seconds: tuple[float, float]
) -> list[str]:
    """The targets at the greatest size, and whether hbpack meets them."""
    case = mix, SIZES[-1]
    bound = facts[case][0]
    lines = []
    ours = _fastest(results, case, bound + 1, is_ours=True)
    if not ours:
        lines.append("Missed: none of hbpack's reaches the bound + 1 pack.")
    else:
        best = results[ours][case]
        peer = _fastest(results, case, best.packs, is_ours=False)
        text = f"{ours} reaches the bound + {best.packs - bound} in {seconds(best.median)}"
        if peer:
            factor = results[peer][case].median / best.median
            text += (
                f", {factor:.1f} times faster than the fastest peer that needs no more packs, {peer} "
                f"(target: {_FASTER:g} times)"
            )
            lines.append(f"{_verdict(factor >= _FASTER)}: {text}.")
        else:
            lines.append(f"Met: {text}; no peer that was measured does (target: {_FASTER:g} times faster than it).")
    near = bound * (1 + _NEAR)
    ours, peer = _fastest(results, case, near, is_ours=True), _fastest(results, case, near, is_ours=False)
    if ours and peer:
        own, other = results[ours][case], results[peer][case]
        lines.append(
            f"{_verdict(own.median <= other.median)}: within {_NEAR:.1%} of the bound, {ours} "
            f"({seconds(own.median)}, {own.packs - bound:+,} packs) is not slower than the fastest peer, {peer} "
            f"({seconds(other.median)}, {other.packs - bound:+,} packs)."
        )
    for name in dict.fromkeys([_DEFAULT, _fastest(results, case, bound + 1, is_ours=True) or _DEFAULT]):
        took = results[name][case].median
        what = f"packing {SIZES[-1]:,} with {name}{' (the default)' if name == _DEFAULT else ''} takes {seconds(took)}"
        lines.append(f"{_verdict(took < _PACK_SECONDS)}: {what} (target: under {_PACK_SECONDS:g} s).")
    if mix == "mix128k":
        build, check = plan_seconds
        lines.append(
            f"{_verdict(build + check < _PLAN_SECONDS)}: the whole plan of {SIZES[-1]:,} (16k:1,128k:8, 32 GPUs, all "
            f"else at its default) takes {seconds(build + check)}: `build_plan` {seconds(build)}, `check_plan` "
            f"{seconds(check)} (target: under {_PLAN_SECONDS:g} s)."
        )
    return lines


def _verdict(holds: bool) -> str:
    return "Met" if holds else "Missed"
