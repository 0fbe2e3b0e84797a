"""HBP's tables 2, 3, 6, 12, 13 and 17 (arXiv 2503.07680v3): the strategies' figures beside the paper's.

Every plan is made as `hbpack stats` makes it, from plan options. A plan depends only on lengths, which `Mix` draws;
the docs say what it is fitted to.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np

from packer_cli.commands.plan import plan_cut
from packer_cli.config import PlanConfig
from packer_cli.config.resolve import resolve
from packer_cli.format.metrics import Metrics
from packer_cli.plan.core.cut import Samples
from packer_cli.plan.core.metrics import measure
from packer_cli.plan.core.types import Int32Array, Plan
from tests.benchmark.report import table

NUM_GPUS = 32
_LONG = 131_072
_SHORT = 16_384

Options = Mapping[str, Any]
"""Plan options, with those of `_DEFAULTS` where they name none."""
_DEFAULTS = {"groups": f"{_SHORT}:1,{_LONG}:8", "gpus": NUM_GPUS, "overflow": "drop"}


@dataclass(frozen=True, kw_only=True)
class Mix:
    """Chats like those of Tulu3's SFT mixture, and long samples like those of LongCite."""

    num_chats: int = 939_343
    """Its data card's count."""
    mean_chat: float = 800
    """Tokens. Random batches of three have 2.4K tokens in table 3. (The card's 2.91 GB are about 750.)"""
    variation: float = 0.85
    """Standard deviation / mean. With it, random batches of three chats of up to 4K pad 41.6 %, as in table 3."""
    family: Literal["gamma", "lognormal"] = "gamma"
    """Of the chats' lengths. In table 3, DBR of these batches is .54: the gamma distribution is closer to it."""
    longest_chat: int = 32_768
    """Tokens: HBP calls the corpus "Tulu3 (32K)". Hardly any chat of either family is so long."""
    num_long: int = 2_000
    """HBP's ablations take about that many of LongCite's 44,600, "uniformly"."""
    shortest_long: int = 1_024
    longest_long: int = _LONG
    is_long_uniform: bool = True
    """Uniform over the lengths; else over their logarithms, as of a corpus where short ones prevail."""

    def lengths(self, share: float = 1.0, seed: int = 0) -> Int32Array:
        """Lengths (int32[n], tokens) of a share of the samples, chats and long ones in random order."""
        generator = np.random.default_rng(seed)
        num_chats, num_long = round(self.num_chats * share), round(self.num_long * share)
        if self.family == "gamma":
            shape = self.variation**-2
            chats = generator.gamma(shape, self.mean_chat / shape, num_chats)
        else:
            spread = np.sqrt(np.log1p(self.variation**2))
            chats = generator.lognormal(np.log(self.mean_chat) - spread**2 / 2, spread, num_chats)
        if self.is_long_uniform:
            long = generator.uniform(self.shortest_long, self.longest_long, num_long)
        else:
            long = np.exp(generator.uniform(np.log(self.shortest_long), np.log(self.longest_long), num_long))
        chats = np.clip(chats, 1, self.longest_chat)
        lengths = np.rint(np.concatenate([chats, long])).clip(1).astype(np.int32)
        generator.shuffle(lengths)
        return lengths


LONGEST = f"{_LONG}:8"
NAIVE: Options = {"strategy": "naive", "groups": LONGEST}
HBP: Options = {"strategy": "hbp"}
HIERARCHICAL: Options = {**HBP, "balance": "none"}
OURS: Options = {"strategy": "balanced"}
_BATCHES_OF_3: Options = {"strategy": "naive", "packing": "padded:batch=3", "groups": "12k:1"}
"""Three samples of up to 4K, padded to the longest."""
_NONE: Options = {"strategy": "naive", "packing": "padded:batch=1", "groups": LONGEST}

_4K: Options = {**NAIVE, "groups": "4k:1"}
_TABLE_2 = {
    "4K, sp 1": (_4K, ".343 0 .003 0"),
    "the same, `isf:threshold=0.98877`": ({**_4K, "packing": "isf:threshold=0.98877"}, "- - - -"),
    "the same, `isf:rounds=10,threshold=0.98877`": (
        {**_4K, "packing": "isf:rounds=10,threshold=0.98877"},
        "- - - -",
    ),
    "32K, sp 4": ({**NAIVE, "groups": "32k:4"}, ".456 1 .001 0"),
    "128K, sp 8": (NAIVE, ".506 1 .003 0"),
}
_SORTED: Options = {"packing": "padded:order=sorted", "balance": "sort", "groups": LONGEST}
_TABLE_3 = {
    "4K random": (4_096, _BATCHES_OF_3, ".54 .416 2.4K"),
    "4K sorted": (4_096, {**_SORTED, "packing": "padded:order=sorted,batch=3", "groups": "12k:1"}, ".001 .001 2.4K"),
    "4K packing": (4_096, _4K, ".003 0 4K"),
    "32K random": (32_768, {**_NONE, "groups": "32k:4"}, ".64 0 .8K"),
    "32K sorted": (32_768, {**_SORTED, "groups": "32k:4"}, ".01 .02 30.2K"),
    "32K packing": (32_768, {**NAIVE, "groups": "32k:4"}, ".0007 0 32K"),
    "128K random": (_LONG, _NONE, ".639 0 .9K"),
    "128K sorted": (_LONG, _SORTED, ".01 .02 125K"),
    "128K packing": (_LONG, NAIVE, ".001 0 128K"),
}
"""The longest sample, the options, and the paper's DBR, PR and Ave-T."""
_TABLE_6 = {
    "ISF": (NAIVE, ".506 1"),
    "+ hierarchical packing": (HIERARCHICAL, ".288 .173"),
    "the same, longest fillers first": ({**HIERARCHICAL, "fill": "longest"}, "- -"),
    "+ balance batching: HBP": (HBP, ".002 .173"),
    "hbpack's default": (OURS, "- -"),
    "the same, packed with `bfd`": ({**OURS, "packing": "bfd"}, "- -"),
}
_TABLE_12 = {
    "ISF": (NAIVE, "0 .001 1.0 .506"),
    "FlexSP": ({"strategy": "flexsp", "global_tokens": 524_288}, ".04 .064 .171 .36"),
    "the same over the whole data set": ({"strategy": "flexsp:all"}, "- - - -"),
    "HBP": (HBP, "0 .001 .173 .002"),
    "hbpack's default": (OURS, "- - - -"),
}
_TABLE_13 = {
    "none": (_NONE, ".72 0 .63"),
    **{
        name: ({**NAIVE, "packing": name}, f"{printed} 0")
        for name, printed in {
            "random": ".53 .03",
            "isf": ".506 .01",
            "ffs": ".508 .01",
            "ffd": ".515 .01",
            "bfs": ".508 .01",
            "spfhp": ".512 .01",
        }.items()
    },
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
    "chats of 700 tokens in the mean": Mix(mean_chat=700),
    "chats of 900 tokens in the mean": Mix(mean_chat=900),
    "chats that vary less: .7": Mix(variation=0.7),
    "chats that vary more: 1": Mix(variation=1.0),
    "lognormal chats that pad as much": Mix(family="lognormal", variation=1.02),
    "lognormal chats of hardly more than 4K": Mix(family="lognormal", variation=0.386),
    "long samples uniform over log length": Mix(is_long_uniform=False),
    "all 44,600 of LongCite": Mix(num_long=44_600),
}
LLAMA_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip
"""The config.json of LLaMA 3.1 8B, as far as it matters."""


def make_plan(lengths: Int32Array, options: Options) -> Plan:
    """The plan that `hbpack stats` makes; samples over the capacity are dropped."""
    options = {**_DEFAULTS, **options}
    with TemporaryDirectory() as folder:
        if str(options.get("strategy")).startswith("flexsp"):
            model = Path(folder, "config.json")
            model.write_text(json.dumps(LLAMA_8B))
            options = {**options, "model": str(model), "gpu": "h100"}
        resolved = resolve(PlanConfig(**options))
    return plan_cut(Samples(lengths=lengths), resolved)[0]


def plan_metrics(lengths: Int32Array, options: Options) -> Metrics:
    """Metrics of `make_plan`."""
    return measure(make_plan(lengths, options))


def run(work: Path, runs: int) -> str:
    """Compute, and return the text of the section. Nothing is timed, so one run is enough."""
    mix = Mix()
    lengths = mix.lengths()
    is_long = lengths > _SHORT
    of_tokens = lengths[is_long].sum() / lengths.sum()
    tables = {
        "Table 3: padded batches and packs": _batches(lengths),
        "Table 2: ISF in one group, samples over the pack length dropped": _table(
            lengths, _TABLE_2, ("abr", "cr", "dbr", "pr"), "pack length"
        ),
        "Table 6: the parts of HBP": _table(lengths, _TABLE_6, ("abr", "cr")),
        "Table 12: compared with FlexSP": _table(lengths, _TABLE_12, ("pr", "dbr", "cr", "abr")),
        "Table 13: packings in one group of 128K, sp 8, no balance": _table(
            lengths, _TABLE_13, ("abr", "pr", "dbr"), "packing"
        ),
        "Table 17: ABR of HBP on other corpora": _corpora(),
        "What the assumptions are worth": _assumptions(),
    }
    text = (
        f"{mix.num_chats:,} chats, {mix.family} distribution, mean {mix.mean_chat:,.0f} tokens, standard deviation "
        f"{mix.variation} of the mean, and {mix.num_long:,} long samples, uniform from {mix.shortest_long:,} to "
        f"{mix.longest_long:,}: {len(lengths):,} samples, {lengths.sum() / 1e6:,.0f} million tokens, of which "
        f"{of_tokens:.1%} in the {is_long.sum():,} samples over 16K. `--groups 16k:1,128k:8 --gpus {NUM_GPUS} "
        "--overflow drop`, unless a row says otherwise; rows of padded batches are made by `hbpack compare "
        "--algorithms` alone, since nobody would pack so. Each column *paper* has HBP's figures for the column before "
        "it."
    )
    return "\n\n".join([text, *(f"**{title}**\n\n{body}" for title, body in tables.items())])


def _batches(lengths: Int32Array) -> str:
    names = ("dbr", "pr", "ave_t")
    rows = [
        _row(title, lengths[lengths <= longest], options, names, printed)
        for title, (longest, options, printed) in _TABLE_3.items()
    ]
    return table(["batching", *_columns(names), "options"], [[*row, _shown(_TABLE_3[row[0]][1])] for row in rows])


def _table(
    lengths: Int32Array, rows: Mapping[str, tuple[Options, str]], names: Sequence[str], corner: str = ""
) -> str:
    cells = [
        [*_row(title, lengths, options, names, printed), _shown(options)] for title, (options, printed) in rows.items()
    ]
    return table([corner, *_columns(names), "options"], cells)


def _shown(options: Options) -> str:
    """As the command line takes them."""
    return "`" + " ".join(f"--{name.replace('_', '-')} {value}" for name, value in options.items()) + "`"


def _corpora() -> str:
    rows = []
    for title, (mix, printed) in _TABLE_17.items():
        lengths = mix.lengths()
        row = _row(title, lengths, HBP, ("abr",), printed)
        rows.append([*row, _number(plan_metrics(lengths, OURS).abr)])
    return table(["corpus", *_columns(("abr",)), "hbpack's default"], rows)


def _assumptions() -> str:
    rows = []
    for title, mix in _ASSUMPTIONS.items():
        print(f"paper: {title}", file=sys.stderr)
        lengths = mix.lengths()
        padded = plan_metrics(lengths[lengths <= 4_096], _BATCHES_OF_3)
        one, naive, hierarchical, hbp = (plan_metrics(lengths, each) for each in (_NONE, NAIVE, HIERARCHICAL, HBP))
        figures = (padded.pr, padded.dbr, one.abr, naive.abr, hierarchical.abr, hbp.abr, hbp.cr)
        rows.append([title, *map(_number, figures)])
    rows.append(["the paper's tables 3, 6, 12 and 13", ".416", ".54", ".72", ".506", ".288", ".002", ".173"])
    header = ["mix", "PR, 4K random", "DBR, 4K random", "ABR, none", "ABR, ISF", "ABR, + hierarchical"]
    return table([*header, "ABR, HBP", "CR, HBP"], rows)


def _row(title: str, lengths: Int32Array, options: Options, names: Sequence[str], printed: str) -> list[str]:
    """A row: for each metric our figure, then the paper's."""
    print(f"paper: {title}", file=sys.stderr)
    metrics = plan_metrics(lengths, options)
    ours = [_number(getattr(metrics, name)) for name in names]
    return [title, *(cell for pair in zip(ours, printed.split(), strict=True) for cell in pair)]


def _columns(names: Sequence[str]) -> list[str]:
    titles = {"ave_t": "Ave-T"}
    return [cell for name in names for cell in (titles.get(name, name.upper()), "paper")]


def _number(value: float) -> str:
    """A ratio as the paper prints it, with one more digit; more than 1 as thousands of tokens.

    >>> _number(0.50629), _number(1.0), _number(0.00004), _number(2397.2)
    ('.5063', '1', '0', '2.4K')
    """
    if value > 1:
        return f"{value / 1000 if value < 4000 else value / 1024:.1f}K"
    return f"{value:.4f}".rstrip("0").rstrip(".").removeprefix("0") or "0"
