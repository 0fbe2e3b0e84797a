"""What every chat template at hand does to conversations whose texts are marked, as `tests/tokens/templates` judges.

The environment variable `HBPACK_TEMPLATES` names further folders of templates, separated by colons.
"""

from __future__ import annotations

import importlib.metadata
import os
import statistics
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.benchmark.measure import BenchmarkError, num_cores
from tests.benchmark.pack import corpora
from tests.benchmark.report import spread, table, versions
from tests.benchmark.tokenizers import cpu_seconds, stage
from tests.tokens.templates.conversations import CONVERSATIONS
from tests.tokens.templates.sources import WHEELS
from tests.tokens.templates.sweep import (
    CRASH,
    FORM,
    HEADER,
    LOST,
    NO_LOSS,
    OPEN,
    OTHERS,
    PLACE,
    REAL,
    REASON,
    TAGS,
    TEXT,
    Outcome,
    Swept,
    sources_of,
    sweep_all,
)

VARIABLE = "HBPACK_TEMPLATES"
PRICED = ("chatml", "qwen2.5", "qwen3")
"""Templates whose tokens the shared tokenizer has."""
MOST_PRICE = 1.6
"""Times what a plain chat costs that a masked one may."""
_COLUMNS = {
    "others' text": (OTHERS, HEADER),
    "lost": (LOST, NO_LOSS, FORM),
    "place": (PLACE,),
    "no end": (OPEN,),
    "reason": (REASON,),
    "unlike tags": (TAGS, TEXT, CRASH),
}
"""Column -> kinds of faults that it counts, in conversations."""


def run(work: Path, runs: int) -> str:
    """Try each template with each conversation, and return the text of the section. Once, whatever `runs` says."""
    if not REAL.is_dir():
        raise BenchmarkError("no shared data: set HBPACK_SHARED to the folder that holds data/")
    folders = [folder for folder in os.environ.get(VARIABLE, "").split(":") if folder]
    sources = sources_of(["hbpack", *WHEELS, *folders])
    done = []
    for number, swept in enumerate(sweep_all(sources, work, jobs=num_cores()), 1):
        print(f"templates: {number} of {len(sources)}, {swept.source.name}", file=sys.stderr)
        done.append(swept)
    return f"{section(done)}\n\n{price(work / 'templates', runs)}"


def price(folder: Path, runs: int) -> str:
    """What it costs to find the loss of the shared chats, and to compare each with its text."""
    folder.mkdir(exist_ok=True)
    chats = corpora() / "sft_messages.jsonl"
    size = chats.stat().st_size / 1e6
    rows, worst = [], 0.0
    for name in PRICED:
        stages = {rule: stage(REAL, folder, chats, rule, name) for rule in ("all", "completion")}
        spent = cpu_seconds(stages, runs, folder)
        plain, masked = ([size / seconds for seconds in spent[rule]] for rule in stages)
        ratio = statistics.median(a / b for a, b in zip(plain, masked, strict=True))
        rows.append([f"`{name}`", spread(plain), spread(masked), f"{ratio:.2f}x"])
        worst = max(worst, ratio)
    return (
        "**Price.** The shared chats by templates of hbpack, with a loss on every token (`--loss-on all`, *plain*) or "
        "on the assistant's turns (*masked*): `hbpack tokenize --workers 1`, from the file to the token store, "
        "without the start of Python, in MB of JSON per second of CPU time, median (minimum-maximum), the two in "
        "turn.\n\n"
        f"{table(['', 'plain, MB/s', 'masked, MB/s', 'masked to plain'], rows)}\n\n"
        f"- {'Met' if worst <= MOST_PRICE else 'Missed'}: a masked chat costs at most {worst:.2f}x a plain one "
        f"(target: {MOST_PRICE}x)."
    )


def section(done: list[Swept]) -> str:
    """The text for these results."""
    of_source: dict[str, list[Swept]] = {}
    for swept in done:
        of_source.setdefault(swept.source.name.partition("/")[0], []).append(swept)
    text = (
        f"{len(done)} templates, each text once, by {len(CONVERSATIONS)} conversations "
        "(`tests/tokens/templates/conversations.py`) in which every text begins and ends with a word of its own. The "
        "tokenizer is a real one with the special tokens that the template writes. *Taken* are conversations with a "
        "sample; *template* are those that it raises for, *hbpack* those that hbpack rejects though transformers "
        "renders them. The other columns count conversations: *others' text*, of another role, a header or a system "
        "prompt carries a loss; *lost*, a text is neither written with its loss nor counted by the run, or arguments "
        "as JSON text are written otherwise than as an object; *place*, another mask alone than as the first or the "
        "21st of a part; *no end*, a turn that is learned ends without a token, and the run does not say so; "
        "*reason*, a message is rejected as not written, but is; *unlike tags*, of templates with "
        "`{% generation %}`, another mask than transformers makes, or of any, a text that transformers writes in no "
        "form of the record. "
        f"{versions(('transformers', 'jinja2'))}."
    )
    header = ["", "templates", "taken", "template", "hbpack", *_COLUMNS]
    rows = [_row(_title(name), templates) for name, templates in of_source.items()]
    faulty = [
        _row(swept.source.name, [swept]) for swept in done if swept.error or any(map(_faults, _outcomes([swept])))
    ]
    tagged = sum(one.has_tags for swept in done for one in swept.outcomes.values())
    differ = sum(bool(swept.faults(TAGS)) for swept in done)
    parts = [
        text,
        table(header, [_row("**all**", done), *rows]),
        f"Masks compared with those of transformers: {tagged}; templates with another one: {differ}.",
        "What hbpack rejects though transformers renders it:",
        table(["reason", "conversations", "templates"], _reasons(done)),
        "Templates with a fault:" if faulty else "No template has a fault.",
        *([table(header, faulty)] if faulty else []),
    ]
    return "\n\n".join(parts)


def _outcomes(done: list[Swept]) -> list[Outcome]:
    return [one for swept in done for one in swept.outcomes.values()]


def _row(title: str, done: list[Swept]) -> list[str]:
    outcomes = _outcomes(done)
    refused = [one for one in outcomes if one.reason]
    counts = [
        len(done),
        len(outcomes) - len(refused),
        sum(one.is_refused for one in refused),
        sum(not one.is_refused for one in refused),
        *(sum(_has(one, kinds) for one in outcomes) for kinds in _COLUMNS.values()),
    ]
    return [title, *(f"{count:,}" for count in counts)]


def _faults(outcome: Outcome) -> bool:
    return bool(outcome.faults)


def _has(outcome: Outcome, kinds: Iterable[str]) -> bool:
    return any(fault.kind in kinds for fault in outcome.faults)


def _reasons(done: list[Swept]) -> list[list[str]]:
    records: Counter[str] = Counter()
    templates: Counter[str] = Counter()
    for swept in done:
        own = [_general(one.reason) for one in swept.outcomes.values() if one.reason and not one.is_refused]
        own += [_general(swept.error)] if swept.error else []
        records.update(own)
        templates.update(set(own))
    return [
        [reason.replace("|", "\\|"), str(number), str(templates[reason])] for reason, number in records.most_common()
    ]


def _general(reason: str) -> str:
    """A reason without the numbers of messages."""
    return "".join("N" if char.isdigit() else char for char in reason)


def _title(package: str) -> str:
    name = {"swift": "ms-swift"}.get(package, package)
    try:
        return f"{package} {importlib.metadata.version(name)}" if package != "hbpack" else "hbpack"
    except importlib.metadata.PackageNotFoundError:
        return package
