"""Draw the figures of the docs, `docs/figures/*.svg`, from plans that hbpack makes. The same bytes every time.

`--check` writes nothing and fails if a figure is not up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

from packer_cli.commands.plan import plan_cut
from packer_cli.config import PlanConfig
from packer_cli.config.resolve import resolve
from packer_cli.cost.analytic import analytic_model, parse_gpu
from packer_cli.cost.shape import ModelShape
from packer_cli.plan.core.cut import Samples
from packer_cli.plan.core.types import Int32Array, Plan
from packer_cli.simulate.epoch import PARTS, simulate

FOLDER = Path(__file__).parent.parent / "docs" / "figures"
NUM_GPUS, LONG, SHORT = 64, 131_072, 16_384
LLAMA_8B = ModelShape(
    num_layers=32, hidden_size=4096, num_heads=32, num_kv_heads=8, head_dim=128, ffn_size=14336, vocabulary_size=128256
)
STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #1f2328 }
.title { font-size: 16px; font-weight: 600 } .small { font-size: 12px; fill: #59636e } .end { text-anchor: end }
.middle { text-anchor: middle } .code { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 12px }
.card { fill: #ffffff; stroke: #d1d9e0 } .box { fill: #f6f8fa; stroke: #848d97 } .gap { stroke: #ffffff }
.line { stroke: #59636e; fill: none; stroke-width: 1.5 } .tip { fill: #59636e }
.a { fill: #cfe3f7 } .b { fill: #6aaee0 } .c { fill: #1f77b4 } .d { fill: #0b3d66 }
.work { fill: #1f77b4 } .again { fill: #79b8e8 } .talk { fill: #8d6bb8 }
.wait { fill: #e3a03a } .rest { fill: #b1bac4 }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .small { fill: #9198a1 } .card { fill: #0d1117; stroke: #3d444d } .gap { stroke: #0d1117 }
.box { fill: #151b23; stroke: #656c76 } .line { stroke: #9198a1 } .tip { fill: #9198a1 }
.a { fill: #1c3a57 } .b { fill: #2f6ca3 } .c { fill: #58a6e8 } .d { fill: #c8e4fb }
.work { fill: #58a6e8 } .again { fill: #2f6ca3 } .talk { fill: #a58bd0 }
.wait { fill: #e0a64c } .rest { fill: #656c76 }
}
"""


def lengths() -> Int32Array:
    """Chats of 700 tokens on average, and 300 long documents, uniform up to 128K."""
    generator = np.random.default_rng(0)
    chats = np.clip(generator.gamma(1.4, 500, 24_000), 16, SHORT)
    documents = generator.integers(SHORT, LONG, 300)
    return generator.permutation(np.concatenate([chats, documents])).astype(np.int32)


def make_plan(samples: Int32Array, **options: str) -> Plan:
    return plan_cut(Samples(lengths=samples), resolve(PlanConfig(**{"gpus": NUM_GPUS, **options})))[0]  # type: ignore[arg-type]


# SVG


def rect(x: float, y: float, width: float, height: float, kind: str, radius: float = 0) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius:g}" class="{kind}"/>'


def text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(words)}</text>'


def arrow(*points: tuple[float, float]) -> str:
    (x, y), (from_x, from_y) = points[-1], points[-2]
    along = (np.sign(x - from_x), np.sign(y - from_y))
    left, right = ((x - 8 * along[0] + 4 * s * along[1], y - 8 * along[1] + 4 * s * along[0]) for s in (1, -1))
    path = " L".join(f"{a:.1f} {b:.1f}" for a, b in points)
    tip = " ".join(f"{a:.1f},{b:.1f}" for a, b in ((x, y), left, right))
    return f'<path d="M{path}" class="line"/><polygon points="{tip}" class="tip"/>'


def legend(x: float, y: float, entries: Mapping[str, str]) -> list[str]:
    parts = []
    for kind, words in entries.items():
        parts += [rect(x, y - 11, 14, 14, kind, 2), text(x + 20, y, words, "small")]
        x += 44 + 6.6 * len(words)
    return parts


def picture(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """Draw a figure on a card of its own, so that it is readable on any page. The title is what screen readers say."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">'
    card = rect(0.5, 0.5, width - 1, height - 1, "card", 8)
    return "\n".join([head, f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>", card, *parts, "</svg>", ""])


# Figures


def flow() -> str:
    """Draw the way of hbpack from the corpus to the trainer."""
    stages = [
        ("corpus", "text, chats,", "or tokens"),
        ("tokens", "ids and loss", "masks, Arrow"),
        ("plan", "lengths only,", "checked"),
        ("shards", "packs, and what", "each rank reads"),
        ("loader", "in your", "trainer"),
    ]
    width, gap, top = 124, 46, 64
    parts = [text(24, 36, "On CPU nodes, once", "title"), text(24 + 4 * (width + gap), 36, "On GPU nodes", "title")]
    for number, (name, *lines) in enumerate(stages):
        x = 24 + number * (width + gap)
        parts += [rect(x, top, width, 78, "box", 6), text(x + width / 2, top + 26, name, "middle title")]
        parts += [text(x + width / 2, top + 46 + 17 * i, line, "middle small") for i, line in enumerate(lines)]
        if number:
            parts.append(arrow((x - gap + 6, top + 39), (x - 6, top + 39)))
    x = 24 + 2 * (width + gap)
    steps = ("group", "pack", "fill", "balance", "schedule")
    begin, step = 86.0, 132
    parts.append(f'<path d="M{x + width / 2} {top + 78} V{top + 112}" class="line" stroke-dasharray="3 3"/>')
    parts.append(rect(begin - 14, top + 112, 5 * step + 10, 58, "box", 6))
    for number, name in enumerate(steps):
        left = begin + number * step
        parts.append(text(left + 50, top + 146, name, "middle code"))
        if number:
            parts.append(arrow((left - 24, top + 142), (left, top + 142)))
    title = "Flow: corpus, tokens, plan (group, pack, fill, balance, schedule), shards, loader"
    return picture(24 * 2 + 5 * width + 4 * gap, 252, title, parts)


def share_of_work(samples: Int32Array) -> str:
    """Draw the distribution of samples, tokens and attention over lengths."""
    borders = [0, 1024, 4096, SHORT, LONG + 1]
    names = ["up to 1K", "1K to 4K", "4K to 16K", "16K to 128K"]
    values = samples.astype(np.float64)
    bars = {"samples": np.ones_like(values), "tokens": values, "attention work": values**2}
    parts = [text(24, 34, "A few long samples do most of the attention", "title")]
    parts += legend(24, 62, dict(zip("abcd", names, strict=True)))
    for number, (name, weights) in enumerate(bars.items()):
        y = 84 + 44 * number
        shares = np.histogram(samples, borders, weights=weights)[0] / weights.sum()
        parts.append(text(24, y + 20, name))
        parts += stacked(140, y, 640, 30, dict(zip("abcd", shares, strict=True)))
    return picture(804, 224, "Shares of samples, tokens and attention work by sample length", parts)


def stacked(x: float, y: float, width: float, height: float, shares: Mapping[str, float]) -> list[str]:
    """Draw a bar of parts, each with its share where there is room for it."""
    parts = []
    for kind, share in shares.items():
        parts.append(rect(x, y, width * share, height, f"{kind} gap"))
        x += width * share
    return parts


def rows_of(plan: Plan, schedule_iteration: int) -> list[list[int]]:
    """List the lengths of the samples of each row of an iteration, longest first."""
    schedule = plan.epochs[0]
    packs = schedule.slot_pack[schedule.slot_iteration == schedule_iteration]
    offsets = plan.packs.offsets
    rows = [plan.pieces.length[plan.packs.pieces[offsets[pack] : offsets[pack + 1]]] for pack in packs]
    return [sorted(row.tolist(), reverse=True) for row in rows]


def iteration(naive: Plan, balanced: Plan) -> str:
    """One iteration of eight rows of 128K: the samples in each, and the attention work of each."""
    parts = [text(24, 34, "Rows of equal length are not equal work", "title")]
    parts += legend(24, 62, dict(zip("abcd", ("up to 1K", "1K to 4K", "4K to 16K", "16K to 128K"), strict=True)))
    y = 84.0
    for title, plan in (("Packed in the order of the data", naive), ("Packed and balanced by hbpack", balanced)):
        rows = next(rows for rows in (rows_of(plan, i) for i in middle_out(plan)) if is_long(rows))
        works = [sum(length**2 for length in row) for row in rows]
        parts += [text(24, y + 14, title), text(548, y + 14, "attention work, and waiting for it")]
        for row, work in zip(rows, works, strict=True):
            y += 22
            parts += row_of_samples(24, y, 500, row)
            done = 232 * work / max(works)
            parts += [rect(548, y, done, 17, "work"), rect(548 + done, y, 232 - done, 17, "wait")]
        y += 44
    parts += legend(548, 62, {"work": "work", "wait": "waiting"})
    return picture(804, int(y), "The samples and the attention work of eight rows, before and after balancing", parts)


def row_of_samples(x: float, y: float, width: float, row: list[int]) -> list[str]:
    """Draw a row, longest sample first; the short ones are too thin to draw one by one."""
    parts = []
    kinds = np.searchsorted([1024, 4096, SHORT], row)
    for kind in (3, 2, 1, 0):
        found = [length for length, each in zip(row, kinds, strict=True) if each == kind]
        for length in found if kind > 1 else [sum(found)]:
            parts.append(rect(x, y, width * length / LONG, 17, f"{'abcd'[kind]} gap"))
            x += width * length / LONG
    return parts


def middle_out(plan: Plan) -> Sequence[int]:
    """Take iterations from the middle of the epoch on, as its ends are special."""
    num = plan.epochs[0].num_iterations
    return range(num // 2, num)


def is_long(rows: list[list[int]]) -> bool:
    """Whether an iteration has rows of the longest group."""
    return all(sum(row) > SHORT for row in rows)


def where_time_goes(plans: Mapping[str, Plan]) -> str:
    """Draw the share of GPU time that each part of an epoch takes, beside the time of the slowest plan."""
    model = analytic_model(LLAMA_8B, parse_gpu("h100"), NUM_GPUS)
    kinds = {"compute": "work", "recompute": "again", "communication": "talk", "waiting": "wait"}
    epochs = {name: simulate(plan, model) for name, plan in plans.items()}
    longest = max(epoch.seconds for epoch in epochs.values())
    parts = [text(24, 34, "Where the GPUs' time goes", "title")]
    names = ("computing", "recomputing", "communicating", "waiting", "all else")
    parts += legend(24, 62, dict(zip([*kinds.values(), "rest"], names, strict=True)))
    for number, (name, epoch) in enumerate(epochs.items()):
        y = 84 + 44 * number
        seconds = dict(zip(PARTS, epoch.gpu_seconds.sum(axis=0) / NUM_GPUS, strict=True))
        shares = {kind: seconds[part] / longest for part, kind in kinds.items()}
        shares["rest"] = epoch.seconds / longest - sum(shares.values())
        parts += [text(24, y + 20, name), *stacked(230, y, 480, 30, shares)]
        parts.append(text(780, y + 20, f"{epoch.seconds:.0f} s", "end"))
    title = "Predicted seconds of an epoch of Llama 3.1 8B on 64 H100, by what the GPUs do"
    return picture(804, 84 + 44 * len(epochs) + 8, title, parts)


def figures() -> dict[str, str]:
    samples = lengths()
    groups = f"{SHORT}:1,{LONG}:8"
    naive = make_plan(samples, strategy="naive", groups=f"{LONG}:8")
    grouped = make_plan(samples, groups=groups, balance="none")
    balanced = make_plan(samples, groups=groups)
    by_part = {"naive packing to 128K": naive, "+ length groups": grouped, "+ balance: hbpack": balanced}
    return {
        "flow": flow(),
        "lengths": share_of_work(samples),
        "iteration": iteration(naive, balanced),
        "time": where_time_goes(by_part),
    }


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    stale = []
    for name, svg in figures().items():
        path = FOLDER / f"{name}.svg"
        if "--check" not in sys.argv:
            path.write_text(svg, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != svg:
            stale.append(path.name)
    if stale:
        sys.exit(f"not up to date: {', '.join(stale)}; run make docs")


if __name__ == "__main__":
    main()
