"""Tokenizers of all families: records with a loss mask beside plain ones, and code beside gigatoken alone."""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import gigatoken
import orjson

from packer_cli.commands.tokenize import CorpusStore
from packer_cli.config import TokenizeConfig
from packer_cli.corpus.blocks import fingerprint
from packer_cli.engine.local import LocalEngine
from packer_cli.engine.output import make_whole
from packer_cli.files import atomic_file
from packer_cli.tokens import part
from packer_cli.tokens.encode.masks import Backends
from packer_cli.tokens.store import open_store
from tests.benchmark.measure import ROOT, folder_bytes
from tests.benchmark.pack import corpora
from tests.benchmark.report import spread, table, versions
from tests.tokens.families import BY_TOKENIZERS, save_family

SHOWN = {
    "gpt2": "GPT-2",
    "neox": "GPT-NeoX (NFC)",
    "cl100k": "cl100k",
    "o200k": "o200k",
    "llama3": "Llama 3",
    "qwen2": "Qwen 2 (NFC)",
    "deepseek": "DeepSeek",
    "llama2": "Llama 2, SentencePiece BPE",
    "mistral": "Mistral, SentencePiece BPE",
    "phi3": "Phi-3, tokens that strip spaces",
    "gemma": "Gemma",
    "t5": "T5, Unigram",
}
CODE = {
    "gpt2": "GPT-2",
    "gpt-neox-20b": "GPT-NeoX-20B's own",
    "cl100k": "cl100k",
    "llama2": "Llama 2, SentencePiece BPE",
    "gemma": "Gemma",
}
MOST = 1.5
"""Times what a plain record costs that one with a mask may."""
LEAST = 0.6
"""Share of gigatoken's own rate."""
_VOCABULARY = 16_000
_SLOW_VOCABULARY = 4_000
_TRAIN_CHARS = 1_500_000
_SLOW_CHARS = 300_000
_RECORD_CHARS = 12_000_000
_SLOW_RECORDS = 2_000
_CODE_CHARS = 480_000_000
_BLOCK_BYTES = 1 << 24
_GIGATOKEN_TEXTS = 64
"""Texts in a call of gigatoken alone."""


def run(work: Path, runs: int) -> str:
    """Train the tokenizers, measure, and return the text of the section."""
    folder = work / "tokenizers"
    folder.mkdir(exist_ok=True)
    code = _code(folder / "code.jsonl")
    records = _records(folder / "records.jsonl", code)
    families = {name: _family(name, folder, records, code) for name in SHOWN}
    masked = {name: _masked(families[name], folder, records, runs) for name in SHOWN}
    families["gpt-neox-20b"] = corpora() / "tokenizers" / "gpt-neox-20b"
    shares = {name: _share(families[name], folder, code, runs) for name in CODE}
    return "\n\n".join([_masked_part(masked), _code_part(shares, code), _verdicts(masked, shares)])


def _code(path: Path) -> Path:
    """Python sources of the installed packages and of Python itself, repeated up to the size."""
    lines, size = [], 0
    for root in (sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), str(ROOT)):
        for source in sorted(Path(root).rglob("*.py")):
            try:
                text = source.read_text(encoding="utf-8")
            except (OSError, ValueError):
                continue
            lines.append(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            size += len(text)
            if size >= _CODE_CHARS:
                break
    with path.open("w", encoding="utf-8") as file:
        written = 0
        while written < _CODE_CHARS:
            for line in lines:
                file.write(line)
                written += len(line)
                if written >= _CODE_CHARS:
                    break
    return path


def _records(path: Path, code: Path) -> Path:
    """The shared chats as prompt-completion records, with the last answer as completion."""
    with (corpora() / "sft_messages.jsonl").open(encoding="utf-8") as chats, path.open("w", encoding="utf-8") as file:
        size = 0
        for line in chats:
            messages = json.loads(line)["messages"]
            answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
            if not answers:
                continue
            prompt = "\n".join(message["content"] for message in messages[: answers[-1]])
            prompt = f"### Instruction:\n{prompt}\n\n### Response:\n"
            record = {"prompt": prompt, "completion": messages[answers[-1]]["content"]}
            size += file.write(json.dumps(record, ensure_ascii=False) + "\n")
            if size >= _RECORD_CHARS:
                break
    return path


def _family(name: str, folder: Path, records: Path, code: Path) -> Path:
    most = _SLOW_CHARS if name in BY_TOKENIZERS else _TRAIN_CHARS
    texts = []
    for path in (records, code):
        size = 0
        with path.open(encoding="utf-8") as file:
            for line in file:
                texts.append("".join(json.loads(line).values())[:20_000])
                size += len(texts[-1])
                if size >= most:
                    break
    return save_family(name, folder / name, texts, _SLOW_VOCABULARY if name in BY_TOKENIZERS else _VOCABULARY)


def _masked(tokenizer: Path, folder: Path, records: Path, runs: int) -> dict[str, list[float]]:
    """MB per second of CPU time, by loss rule."""
    if tokenizer.name in BY_TOKENIZERS:
        lines = records.read_text(encoding="utf-8").splitlines(keepends=True)[:_SLOW_RECORDS]
        records = folder / "few.jsonl"
        records.write_text("".join(lines), encoding="utf-8")
    stages = {rule: stage(tokenizer, folder, records, rule) for rule in ("all", "completion")}
    size = records.stat().st_size / 1e6
    return {rule: [size / one for one in spent] for rule, spent in cpu_seconds(stages, runs, folder).items()}


def _share(tokenizer: Path, folder: Path, code: Path, runs: int) -> dict[str, list[float]]:
    """MB per second of CPU time of gigatoken alone, of the stage, and of what the stage cannot do without besides; all
    without an earlier round's caches."""
    texts = [json.loads(line)["text"] for line in code.open(encoding="utf-8")]
    backend_json = (tokenizer / "tokenizer.json").read_text(encoding="utf-8")
    own_stage = stage(tokenizer, folder, code, "all")

    def encode_all() -> None:
        alone = gigatoken.Tokenizer.from_json(backend_json)
        for first in range(0, len(texts), _GIGATOKEN_TEXTS):
            alone.encode_batch(texts[first : first + _GIGATOKEN_TEXTS], parallel=False)

    def run_stage() -> None:
        part._encoders.clear()
        part._loaded.update({key: Backends(one.tokenizer) for key, one in part._loaded.items()})
        own_stage()

    def run_around() -> None:
        fingerprint(str(code))
        with code.open("rb") as lines, atomic_file(folder / "around", sync=False) as file:
            for line in lines:
                orjson.loads(line)
            for first in range(0, num_bytes, len(block)):
                file.write(block[: num_bytes - first])
        (folder / "around").unlink()

    shutil.rmtree(folder / "out", ignore_errors=True)
    run_stage()
    num_bytes = folder_bytes(folder / "out")
    block = memoryview(bytes(_BLOCK_BYTES))
    size = code.stat().st_size / 1e6
    spent = cpu_seconds({"gigatoken": encode_all, "hbpack": run_stage, "around": run_around}, runs, folder)
    return {name: [size / one for one in seconds] for name, seconds in spent.items()}


def stage(tokenizer: Path, folder: Path, data: Path, rule: str, template: str | None = None) -> Callable[[], None]:
    """Make `hbpack tokenize --workers 1`, without the start of Python."""
    # Some of the tokenizers name no EOS.
    config = TokenizeConfig(
        inputs=(str(data),), tokenizer=str(tokenizer), loss_on=rule, append_eos="never", chat_template=template
    )
    output = folder / "out"

    def run_stage() -> None:
        with LocalEngine(1) as engine:
            make_whole(CorpusStore(config, output), engine)
        assert len(open_store(output / "tokens"))

    return run_stage


def cpu_seconds(functions: Mapping[str, Callable[[], None]], runs: int, folder: Path) -> dict[str, list[float]]:
    """CPU seconds of functions in turn, so that disturbances affect all alike.

    Not counted: the first round, which fills caches, and removing the previous run's output from `folder`.
    """
    spent: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(runs + 1):
        for name, function in functions.items():
            shutil.rmtree(folder / "out", ignore_errors=True)
            start = time.process_time()
            function()
            if number:
                spent[name].append(time.process_time() - start)
        print(f"tokenizers: round {number} of {runs}", file=sys.stderr)
    return spent


def _most(rates: Mapping[str, list[float]]) -> float:
    """The share of gigatoken's rate that a stage without any cost of its own would have."""
    return statistics.median(1 / (1 + ratio) for ratio in _ratios(rates["gigatoken"], rates["around"]))


def _ratios(over: list[float], under: list[float]) -> list[float]:
    return [a / b for a, b in zip(over, under, strict=True)]


def _masked_part(masked: Mapping[str, dict[str, list[float]]]) -> str:
    rows = [
        [
            SHOWN[name],
            "tokenizers" if name in BY_TOKENIZERS else "gigatoken",
            spread(rates["all"]),
            spread(rates["completion"]),
            f"{statistics.median(_ratios(rates['all'], rates['completion'])):.2f}x",
        ]
        for name, rates in masked.items()
    ]
    header = ["", "back end", "plain, MB/s", "masked, MB/s", "masked to plain"]
    return (
        "**Records with a loss mask.** Prompts and completions of the shared chats as JSON lines, with a loss on the "
        "whole record (`--loss-on all`, *plain*) or on the completion alone (*masked*). The tokenizers have the "
        f"normalizer, splitter and added tokens of their family, and {_VOCABULARY:,} ids learned from these records "
        f"and from code ({_SLOW_VOCABULARY:,} if gigatoken does not load them). One process runs `hbpack tokenize "
        "--workers 1`, from the file to the token store, without the start of Python. The figures are MB of JSON per "
        "second of CPU time, median (minimum-maximum), the two in turn. "
        f"{versions(('gigatoken', 'tokenizers'))}.\n\n{table(header, rows)}"
    )


def _code_part(shares: Mapping[str, dict[str, list[float]]], code: Path) -> str:
    rows = [
        [
            CODE[name],
            spread(rates["gigatoken"]),
            spread(rates["hbpack"]),
            f"{statistics.median(_ratios(rates['hbpack'], rates['gigatoken'])):.0%}",
            spread(rates["around"]),
            f"{_most(rates):.0%}",
        ]
        for name, rates in shares.items()
    ]
    header = [
        "",
        "gigatoken alone, MB/s",
        "hbpack tokenize, MB/s",
        "share",
        "the rest at least, MB/s",
        "share at most",
    ]
    return (
        f"**Code.** {code.stat().st_size / 1e6:,.0f} MB of Python sources as JSON lines. *gigatoken alone*: "
        f"`encode_batch` on one core, with lists of {_GIGATOKEN_TEXTS} texts that are already in memory and with a "
        "new tokenizer each time; the ids are thrown away. "
        "*hbpack tokenize* reads, parses, checks, encodes, compares with `tokenizers`, hashes and writes; measured "
        "as above. *The rest at least* is what no tokenize stage can do without, besides encoding: hash the file, "
        "parse each line with orjson, and write and hash as many bytes as the store has. With gigatoken's time, it "
        "gives the *share at most*. gigatoken remembers words that it has seen, and much of this code repeats itself, "
        f"so its own rate is high here.\n\n{table(header, rows)}"
    )


def _verdicts(masked: Mapping[str, dict[str, list[float]]], shares: Mapping[str, dict[str, list[float]]]) -> str:
    lines = []
    worst = max(masked, key=lambda name: statistics.median(_ratios(masked[name]["all"], masked[name]["completion"])))
    ratio = statistics.median(_ratios(masked[worst]["all"], masked[worst]["completion"]))
    lines.append(
        (ratio <= MOST, f"a masked record costs at most {ratio:.2f}x a plain one ({SHOWN[worst]}; target: {MOST}x)")
    )
    for name, rates in shares.items():
        share = statistics.median(_ratios(rates["hbpack"], rates["gigatoken"]))
        target = f"target: {LEAST:.0%}; at most {_most(rates):.0%} is possible"
        lines.append((share >= LEAST, f"{CODE[name]}: {share:.0%} of gigatoken's own rate ({target})"))
    return "\n".join(f"- {'Met' if holds else 'Missed'}: {what}." for holds, what in lines)
