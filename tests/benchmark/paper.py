"""HBP's tables 2, 6, 12, 13 and 17 (arXiv 2503.07680v3): our figures beside the paper's, on similar lengths.

A plan depends only on lengths, which `Mix` draws from what is known about the corpora. Where that leaves a choice, one
row of the paper decides, and the docs say so.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Literal

import numpy as np

from packer_cli.format.metrics import Metrics
from packer_cli.plan.balance import parse_balance
from packer_cli.plan.build import build_plan
from packer_cli.plan.check import check_plan
from packer_cli.plan.groups import Group
from packer_cli.plan.metrics import measure
from packer_cli.plan.packing import REGISTRY, PackingOptions
from packer_cli.plan.packing.isf import IsfOptions
from packer_cli.plan.pieces import make_pieces
from packer_cli.plan.rules import PlanRules
from packer_cli.plan.types import Int32Array, Plan
from tests.benchmark.report import table

NUM_GPUS = 32
_LONG = 131_072
ONE = (Group(capacity=_LONG, sp_size=8),)
TWO = (Group(capacity=16_384), Group(capacity=_LONG, sp_size=8))


@dataclass(frozen=True, kw_only=True)
class Mix:
    """Chats like those of Tulu3's SFT mixture, and long samples like those of LongCite."""

    num_chats: int = 939_343
    """Its data card's count. Their lengths are lognormal, as lengths of chats roughly are."""
    mean_chat: float = 750
    """Tokens: the card gives 2.91 GB, so 3,100 bytes a sample, of which an id and a source take some, at 4 bytes a
    token."""
    longest_chat: int = 4_096
    """Tokens. With the mean it fixes the spread, see `spread`. HBP calls the corpus "Tulu3 (32K)", but in table 6 ABR
    without balance is that of a corpus with hardly any chats over 4K."""
    num_long: int = 2_000
    """HBP's ablations take about that many of LongCite's 44,600, "uniformly"."""
    shortest_long: int = 1_024
    longest_long: int = _LONG
    is_long_uniform: bool = True
    """Uniform over the lengths; else over their logarithms, as of a corpus where short ones prevail. HBP's CR tells
    the two readings of "uniformly" apart: the second gives less than half of it."""

    @property
    def spread(self) -> float:
        """Standard deviation of the chats' log length with which `longest_chat` occurs once in `num_chats`.

        With z the quantile of 1 - 1 / num_chats, log(longest) = median + z sigma and log(mean) = median + sigma^2 / 2,
        where the median is that of the logarithm.
        """
        z = NormalDist().inv_cdf(1 - 1 / self.num_chats)
        return float(z - np.sqrt(z * z - 2 * np.log(self.longest_chat / self.mean_chat)))

    def lengths(self, share: float = 1.0, seed: int = 0) -> Int32Array:
        """Lengths (int32[n], tokens) of a share of the samples, chats and long ones in random order."""
        generator = np.random.default_rng(seed)
        spread = self.spread
        center = np.log(self.mean_chat) - spread**2 / 2
        chats = np.clip(generator.lognormal(center, spread, round(self.num_chats * share)), 1, self.longest_chat)
        num_long = round(self.num_long * share)
        if self.is_long_uniform:
            long = generator.uniform(self.shortest_long, self.longest_long, num_long)
        else:
            long = np.exp(generator.uniform(np.log(self.shortest_long), np.log(self.longest_long), num_long))
        lengths = np.rint(np.concatenate([chats, long])).astype(np.int32)
        generator.shuffle(lengths)
        return lengths


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """The settings of a plan."""

    packing: str = "isf"
    options: PackingOptions | None = None
    """The packing's own where None."""
    groups: tuple[Group, ...] = ONE
    balance: str = "none"
    fill: Literal["balanced", "greedy", "longest"] = "greedy"


NAIVE = Scheme()
HIERARCHICAL = Scheme(groups=TWO)
LONGEST_FIRST = replace(HIERARCHICAL, fill="longest")
HBP = Scheme(groups=TWO, balance="sort")
OURS = Scheme(groups=TWO, packing="bfs", balance="refine", fill="balanced")
OURS_BFD = replace(OURS, packing="bfd")
_MORE_ROUNDS = IsfOptions(rounds=500)
"""HBP does not print its C, the number of rounds."""

_4K = (Group(capacity=4_096),)
_TABLE_2 = {
    "4K, sp 1": (replace(NAIVE, groups=_4K), ".343 0 .003 0"),
    "4K, sp 1, ISF of 500 rounds": (replace(NAIVE, groups=_4K, options=_MORE_ROUNDS), ".343 0 .003 0"),
    "32K, sp 4": (replace(NAIVE, groups=(Group(capacity=32_768, sp_size=4),)), ".456 1 .001 0"),
    "128K, sp 8": (NAIVE, ".506 1 .003 0"),
}
_TABLE_6 = {
    "ISF": (NAIVE, ".506 1"),
    "+ hierarchical packing": (HIERARCHICAL, ".288 .173"),
    "the same, longest fillers first": (LONGEST_FIRST, "- -"),
    "+ balance batching": (HBP, ".002 .173"),
    "+ hierarchical packing, ISF of 500 rounds": (replace(HIERARCHICAL, options=_MORE_ROUNDS), ".288 .173"),
    "+ balance batching, ISF of 500 rounds": (replace(HBP, options=_MORE_ROUNDS), ".002 .173"),
    "hbpack's default": (OURS, "- -"),
    "the same, packed with `bfd`": (OURS_BFD, "- -"),
}
_TABLE_12 = {
    "ISF": (NAIVE, "0 .001 1.0 .506"),
    "FlexSP": (None, ".04 .064 .171 .36"),
    "HBP": (HBP, "0 .001 .173 .002"),
    "hbpack's default": (OURS, "- - - -"),
}
_TABLE_13 = {
    "none": ".72 0",
    "random": ".53 .03",
    "isf": ".506 .01",
    "ffs": ".508 .01",
    "ffd": ".515 .01",
    "bfs": ".508 .01",
    "spfhp": ".512 .01",
}
_TABLE_17 = {
    "Tulu3": (Mix(num_long=0), ".001"),
    "Tulu3 + LongCite": (Mix(), ".002"),
    # 6,000 samples of 2K to 32K words (arXiv 2408.07055), 4 tokens for 3 words.
    "Tulu3 + LongWriter": (
        Mix(num_long=6_000, shortest_long=2_667, longest_long=42_667, is_long_uniform=False),
        ".003",
    ),
}
_ASSUMPTIONS = {
    "as above": Mix(),
    "chats of 600 tokens in the mean": Mix(mean_chat=600),
    "chats of 1,000 tokens in the mean": Mix(mean_chat=1_000),
    "chats of up to 8K": Mix(longest_chat=8_192),
    "chats of up to 16K": Mix(longest_chat=16_384),
    "chats of up to 32K": Mix(longest_chat=32_768),
    "long samples uniform over log length": Mix(is_long_uniform=False),
    "all 44,600 of LongCite": Mix(num_long=44_600),
}


def make_plan(lengths: Int32Array, scheme: Scheme) -> Plan:
    """A checked plan on 32 GPUs; samples over the capacity are dropped."""
    algorithm = REGISTRY[scheme.packing]
    rules = PlanRules(
        groups=scheme.groups,
        num_gpus=NUM_GPUS,
        algorithm=algorithm,
        packing_options=scheme.options or algorithm.options(),
        balance=parse_balance(scheme.balance),
        fill=scheme.fill,
    )
    samples = np.arange(len(lengths), dtype=np.int64)
    plan = build_plan(make_pieces(lengths, samples, scheme.groups[-1].capacity, "drop"), rules)
    check_plan(plan)
    return plan


def plan_metrics(lengths: Int32Array, scheme: Scheme) -> Metrics:
    """Metrics of `make_plan`."""
    return measure(make_plan(lengths, scheme))


def run(work: Path, runs: int) -> str:
    """Compute, and return the text of the section. Nothing is timed, so one run is enough."""
    mix = Mix()
    lengths = mix.lengths()
    is_long = lengths > TWO[0].capacity
    of_tokens = lengths[is_long].sum() / lengths.sum()
    tables = {
        "Table 6: the parts of HBP": _components(lengths),
        "Table 12: compared with FlexSP": _beside_flexsp(lengths),
        "Table 13: packings in one group of 128K, sp 8, no balance": _packings(lengths),
        "Table 2: ISF in one group, samples over the pack length dropped": _pack_lengths(lengths),
        "Table 17: ABR of HBP on other corpora": _corpora(),
        "What the assumptions are worth": _assumptions(),
    }
    text = (
        f"{mix.num_chats:,} chats, lognormal, mean {mix.mean_chat:,.0f} tokens, spread {mix.spread:.3f} "
        f"(so that the longest has about {mix.longest_chat:,}), and {mix.num_long:,} long samples, uniform from "
        f"{mix.shortest_long:,} to {mix.longest_long:,}: {len(lengths):,} samples, {lengths.sum() / 1e6:,.0f} million "
        f"tokens, of which {of_tokens:.1%} in the {is_long.sum():,} samples over 16K. {NUM_GPUS} GPUs. "
        "Each column *paper* has HBP's figures for the column before it."
    )
    return "\n\n".join([text, *(f"**{title}**\n\n{body}" for title, body in tables.items())])


def _components(lengths: Int32Array) -> str:
    rows = [_row(title, lengths, scheme, ("abr", "cr"), printed) for title, (scheme, printed) in _TABLE_6.items()]
    return table(["", *_columns("abr", "cr")], rows)


def _beside_flexsp(lengths: Int32Array) -> str:
    names = ("pr", "dbr", "cr", "abr")
    rows = [_row(title, lengths, scheme, names, printed) for title, (scheme, printed) in _TABLE_12.items()]
    return table(["", *_columns(*names)], rows)


def _packings(lengths: Int32Array) -> str:
    rows = [
        _row(name, lengths, replace(NAIVE, packing=name), ("abr", "pr"), printed)
        for name, printed in _TABLE_13.items()
    ]
    return table(["packing", *_columns("abr", "pr")], rows)


def _pack_lengths(lengths: Int32Array) -> str:
    names = ("abr", "cr", "dbr", "pr")
    rows = [_row(title, lengths, scheme, names, printed) for title, (scheme, printed) in _TABLE_2.items()]
    return table(["pack length", *_columns(*names)], rows)


def _corpora() -> str:
    rows = []
    for title, (mix, printed) in _TABLE_17.items():
        lengths = mix.lengths()
        row = _row(title, lengths, HBP, ("abr",), printed)
        rows.append([*row, _number(plan_metrics(lengths, OURS).abr)])
    return table(["corpus", *_columns("abr"), "hbpack's default"], rows)


def _assumptions() -> str:
    rows = []
    for title, mix in _ASSUMPTIONS.items():
        print(f"paper: {title}", file=sys.stderr)
        lengths = mix.lengths()
        naive, hierarchical, hbp = (plan_metrics(lengths, scheme) for scheme in (NAIVE, HIERARCHICAL, HBP))
        rows.append([title, *map(_number, (naive.abr, hierarchical.abr, hbp.abr, hbp.cr))])
    rows.append(["the paper's tables 6 and 12", ".506", ".288", ".002", ".173"])
    return table(["mix", "ABR, ISF", "ABR, + hierarchical", "ABR, + balance", "CR, + balance"], rows)


def _row(title: str, lengths: Int32Array, scheme: Scheme | None, names: tuple[str, ...], printed: str) -> list[str]:
    """A row: for each metric our figure, then the paper's."""
    print(f"paper: {title}", file=sys.stderr)
    metrics = plan_metrics(lengths, scheme) if scheme else None
    ours = [_number(getattr(metrics, name)) if metrics else "-" for name in names]
    return [title, *(cell for pair in zip(ours, printed.split(), strict=True) for cell in pair)]


def _columns(*names: str) -> list[str]:
    return [cell for name in names for cell in (name.upper(), "paper")]


def _number(value: float) -> str:
    """A ratio as the paper prints it, with one more digit.

    >>> _number(0.50629), _number(1.0), _number(0.00004)
    ('.5063', '1', '0')
    """
    return f"{value:.4f}".rstrip("0").rstrip(".").removeprefix("0") or "0"
