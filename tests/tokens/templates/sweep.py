"""`python -m tests.tokens.templates.sweep [PATH or PACKAGE...]`: what is wrong with what templates make of chats.

Without arguments, the templates of hbpack and of all installed wheels. A PATH is a Jinja file, a Python file with
Jinja texts, or a folder of such files. `--only NAME` takes one conversation, `--show` prints the text with the loss
marked.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cached_property, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from packer_cli.corpus.records.shapes import Normalizer
from packer_cli.corpus.types import Document, DocumentBatch, Reject
from packer_cli.errors import TokenizerError
from packer_cli.tokens.encode.backends import BackendMismatch
from packer_cli.tokens.encode.items import drop_without_loss
from packer_cli.tokens.tokenizer.loading import LoadedTokenizer
from tests.tokens.helpers import encoder_of
from tests.tokens.templates.conversations import CONVERSATIONS, EQUAL, Conversation
from tests.tokens.templates.oracle import HEADER, LOST, NO_LOSS, OPEN, OTHERS, TEXT, Bytes, Fault, Oracle
from tests.tokens.templates.plain import Plain, TemplateError
from tests.tokens.templates.sources import WHEELS, Source, of_hbpack, of_path, of_wheel
from tests.tokens.templates.vocabulary import make_tokenizer

PLACE, FORM, TAGS, CRASH = "place", "form of arguments", "unlike transformers", "crash"
REASON = "wrong reason"
KINDS = (OTHERS, HEADER, LOST, NO_LOSS, OPEN, TEXT, PLACE, FORM, REASON, TAGS, CRASH)
REAL = Path(os.environ.get("HBPACK_SHARED", Path(__file__).parents[4] / "shared")) / "data/tokenizers/minimind-chatml"
_FILLERS = 20
"""Conversations of another shape that stand before one: more than are compared at a part's beginning."""

Row = tuple[list[int], list[Any]]


class Outcome(NamedTuple):
    """What became of one conversation with one template."""

    reason: str
    """Why it was rejected; empty: it was not."""
    is_refused: bool
    """Whether transformers cannot render it either."""
    faults: tuple[Fault, ...]
    counted: tuple[str, ...]
    """What the run says of it."""
    has_tags: bool = False
    """Whether the masks were compared with those of transformers."""


class Swept(NamedTuple):
    """One template."""

    source: Source
    error: str
    """Why hbpack does not take it; empty: it does."""
    outcomes: dict[str, Outcome]
    """By the name of the conversation."""

    def faults(self, kind: str) -> list[tuple[str, Fault]]:
        """Faults of a kind, with the conversation."""
        return [(name, each) for name, one in self.outcomes.items() for each in one.faults if each.kind == kind]


class Sweeper:
    """Tries conversations with one template."""

    def __init__(self, source: Source, folder: Path):
        make_tokenizer(source.text, REAL, folder)
        self._tokenizer = LoadedTokenizer(str(folder))
        self._encoder = encoder_of(self._tokenizer, append_eos="auto")
        self._plain = Plain(source.text, **self._tokenizer.special_tokens_map)
        self._oracle = Oracle(self._plain)
        self.bytes = Bytes(folder)

    def encode(self, records: Iterable[Any]) -> tuple[dict[int, Row], dict[int, str], list[str]]:
        """Rows and rejects by line, and what the run says, for the records of one part."""
        normalizer = Normalizer()
        batch = DocumentBatch()
        for line, record in enumerate(records, 1):
            parsed = normalizer.parse(record, line)
            assert isinstance(parsed, (Document, Reject))
            (batch.documents if isinstance(parsed, Document) else batch.rejects).append(parsed)  # type: ignore[arg-type]
        encoder = self._encoder
        for _ in range(3):
            encoder.start_part()
            try:
                (encoded,) = list(encoder.encode_all([batch])) or [None]
                break
            except BackendMismatch as mismatch:
                batch.rejects[:] = [each for each in batch.rejects if each.line not in _lines(batch)]
                encoder = encoder.fallback(mismatch, "records")
        rows, rejects = {}, {each.line: each.reason for each in batch.rejects}
        counted = [*(normalizer.unused + encoder.unused), *(line for line in encoder.warnings if "render" not in line)]
        if encoded is not None:
            encoded, without_loss = drop_without_loss(encoded, encoder.unused)
            rejects |= {each.line: each.reason for each in (*encoded.rejects, *without_loss)}
            samples = encoded.samples
            counted += ["is open"] if encoded.is_open.any() else []
            for k, line in enumerate(samples.lines.tolist()):
                at = slice(samples.offsets[k], samples.offsets[k + 1])
                mask = samples.loss_mask
                rows[line] = (
                    samples.input_ids[at].tolist(),
                    ([True] * len(samples.input_ids[at]) if mask is None else mask[at].tolist()),
                )
        return rows, rejects, counted

    @cached_property
    def _fillers(self) -> list[Conversation]:
        names = ("single turn", "system", "tools and system", "tools and no call")
        return [chat for chat in map(CONVERSATIONS.__getitem__, names) if self.encode([chat.record])[0]]

    def outcome(self, chat: Conversation) -> Outcome:
        """Try a conversation alone, as the first and as a later one of a part."""
        try:
            text = self._plain.render(chat.messages, chat.tools)
        except TemplateError:
            text = None
        is_refused = text is None
        rows, rejects, counted = self.encode([chat.record])
        alone = rows.get(1)
        faults: list[Fault] = []
        filler = next((each for each in self._fillers if each.shape != chat.shape), None)
        if filler is not None:
            others = [filler.record] * _FILLERS
            first, last = self.encode([chat.record, filler.record]), self.encode([*others, chat.record])
            for where, part, line in (("first", first, 1), ("after others", last, _FILLERS + 1)):
                if part[0].get(line) != alone:
                    faults.append(Fault(PLACE, f"{where}: {self._difference(alone, part[0].get(line))}"))
        if alone is None:
            reason = rejects.get(1, "?")
            if text is not None and is_wrong_reason(reason, chat, text):
                faults.append(Fault(REASON, reason))
            return Outcome(reason, is_refused, tuple(faults), tuple(counted))
        if chat.name in EQUAL:
            same = self.encode([CONVERSATIONS[EQUAL[chat.name]].record])[0].get(1)
            if same is not None and same != alone:
                text = _wide(self.bytes.sample(*alone).text)
                faults.append(Fault(FORM, text[text.find("Zxbc") - 40 :][:120]))
        sample = self.bytes.sample(*alone)
        has_tags = bool(re.search(r"\{%-?\s*generation", self._plain.template))
        given = self._oracle.written(chat, sample)
        is_compared = has_tags and given is not None and not any("weight" in message for message in chat.messages)
        unlike = self._unlike(given, alone) if given is not None and is_compared else []
        found = self._oracle.judge(chat, sample, counted)
        # Where the template itself says what is learned, headers may be.
        faults += [*unlike, *(each for each in found if not has_tags or unlike or each.kind != HEADER)]
        return Outcome("", is_refused, tuple(faults), tuple(counted), is_compared)

    def _unlike(self, chat: Conversation, row: Row) -> list[Fault]:
        given = chat.record
        expected = self._tokenizer.hf.apply_chat_template(
            given["messages"], tools=given.get("tools"), return_dict=True, return_assistant_tokens_mask=True
        )
        ids, mask = expected["input_ids"], expected["assistant_masks"]
        if row[0][: len(ids)] != ids or len(row[0]) > len(ids) + 1:
            return [Fault(TAGS, "other ids")]
        ours = row[1][: len(ids)]
        words = [_wide(piece) for piece in self.bytes.pieces(ids)]
        differ = [k for k, (one, other) in enumerate(zip(ours, mask, strict=True)) if bool(one) != bool(other)]
        # The white space that ends an answer may be in one token with the next role.
        ends = [k for k in differ if mask[k] and words[k][:1].isspace() and (words[k].isspace() or not mask[k + 1])]
        if differ != ends:
            return [Fault(TAGS, self._difference((ids, mask), (ids, ours)))]
        return []

    def _difference(self, one: Row | None, other: Row | None) -> str:
        """Both rows' first unlike stretch, or which of them was rejected."""
        if one is None or other is None:
            return f"{'rejected' if one is None else 'taken'} alone, {'rejected' if other is None else 'taken'} here"
        if one[0] != other[0]:
            return "other ids"
        differ = [k for k, (a, b) in enumerate(zip(one[1], other[1], strict=False)) if bool(a) != bool(b)]
        if not differ:
            return "other lengths"
        sample = self.bytes.sample(one[0], one[1])
        end = next((k for k in range(differ[0], len(one[0])) if k not in differ), len(one[0]))
        text = sample.text[sample.tokens[differ[0]].start : sample.tokens[end - 1].stop]
        return f"{'loss' if other[1][differ[0]] else 'no loss'} there on {_wide(text)!r}"

    def marked(self, chat: Conversation) -> str:
        """The text with the loss marked, or why there is none."""
        rows, rejects, counted = self.encode([chat.record])
        if not rows:
            return f"rejected: {rejects}"
        sample = self.bytes.sample(*rows[1])
        pieces, was = [], False
        for token in sample.tokens:
            pieces += ["⟧" if was else "⟦"] if token.has_loss != was else []
            was = token.has_loss
            pieces.append(_wide(sample.text[token.start : token.stop]))
        return "".join([*pieces, "⟧" if was else "", *(f"\n  said: {line}" for line in counted)])


def is_wrong_reason(reason: str, chat: Conversation, text: str) -> bool:
    """Whether a message that is said not to be written is in the text that transformers renders."""
    found = re.search(r"does not write .*message (\d+)", reason)
    if found is None or "array" in reason:
        return False
    words = [each.opening for each in chat.texts if each.message == int(found[1]) - 1]
    return bool(words) and all(word in text for word in words)


def _wide(text: str) -> str:
    return text.encode("latin-1").decode("utf-8", "replace")


def _lines(batch: DocumentBatch) -> set[int]:
    return {each.line for each in batch.documents}


def sweep(source: Source, folder: Path, chats: Iterable[Conversation] = ()) -> Swept:
    """Try conversations, by default all, with a template."""
    try:
        sweeper = Sweeper(source, folder)
        sweeper.encode([CONVERSATIONS["single turn"].record])
    except TokenizerError as error:
        return Swept(source, str(error), {})
    outcomes = {}
    for chat in chats or CONVERSATIONS.values():
        try:
            outcomes[chat.name] = sweeper.outcome(chat)
        except Exception as error:
            outcomes[chat.name] = Outcome("", False, (Fault(CRASH, f"{type(error).__name__}: {error}"),), ())
    return Swept(source, "", outcomes)


def sweep_all(sources: list[Source], work: Path, chats: Iterable[Conversation] = (), jobs: int = 1) -> Iterator[Swept]:
    """Try conversations with each template, in order, by so many processes."""
    folders = [work / str(number) for number in range(len(sources))]
    if jobs == 1:
        yield from map(partial(sweep, chats=chats), sources, folders)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(partial(sweep, chats=list(chats)), sources, folders)


def sources_of(names: Iterable[str]) -> list[Source]:
    """The templates of packages and paths, each text once."""
    found: list[Source] = []
    for name in names:
        path = Path(name)
        if name == "hbpack":
            found += of_hbpack()
        elif name in WHEELS and not path.exists():
            found += of_wheel(name) or []
        else:
            found += of_path(path, path.name if path.is_dir() else "")
    return list({source.text: source for source in reversed(found)}.values())[::-1]


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.tokens.templates.sweep", description=__doc__)
    parser.add_argument("names", nargs="*", default=["hbpack", *WHEELS])
    parser.add_argument("--only", action="append", help="a conversation, by name; may be given again")
    parser.add_argument("--show", action="store_true", help="print each text, with the loss between ⟦ and ⟧")
    parser.add_argument("--json", type=Path, help="write all outcomes to this file")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--faults", type=int, default=3, help="faults of each kind to print of a template")
    arguments = parser.parse_args()
    chats = [CONVERSATIONS[name] for name in arguments.only or CONVERSATIONS]
    done: list[Swept] = []
    begin = time.time()
    sources = sources_of(arguments.names)
    with tempfile.TemporaryDirectory(prefix="hbpack-sweep-") as work:
        for swept in sweep_all(sources, Path(work), chats, arguments.jobs):
            done.append(swept)
            _print(swept, arguments.faults)
            if arguments.show and not swept.error:
                sweeper = Sweeper(swept.source, Path(work) / "shown")
                for chat in chats:
                    print(f"  -- {chat.name}\n{sweeper.marked(chat)}")
            sys.stdout.flush()
    print(f"\n{len(done)} templates, {len(chats)} conversations, {time.time() - begin:.0f} s")
    for kind in KINDS:
        faults = [(one.source.name, name) for one in done for name, _ in one.faults(kind)]
        print(f"{kind}: {len(faults)} faults, {len(set(faults))} records, {len({t for t, _ in faults})} templates")
    taken = [one for each in done for one in each.outcomes.values() if not one.reason]
    print(f"masks compared with transformers': {sum(one.has_tags for one in taken)}")
    if arguments.json:
        arguments.json.write_text(json.dumps([_as_json(each) for each in done], indent=1), encoding="utf-8")
    return int(any(one.faults for each in done for one in each.outcomes.values()))


def _print(swept: Swept, most: int) -> None:
    outcomes = swept.outcomes.values()
    own = Counter(one.reason for one in outcomes if one.reason and not one.is_refused)
    refused = sum(bool(one.reason) and one.is_refused for one in outcomes)
    print(
        f"\n{swept.source.name}: {swept.error or f'{len(outcomes)} conversations, {refused} refused by the template'}"
    )
    for reason, number in own.items():
        print(f"  rejected, {number}: {reason}")
    for kind in KINDS:
        faults = swept.faults(kind)
        if faults:
            print(f"  {kind}: {len({name for name, _ in faults})} conversations")
        for name, fault in faults[:most]:
            print(f"    {name}: {fault.what}")


def _as_json(swept: Swept) -> dict[str, Any]:
    outcomes = {
        name: one._asdict() | {"faults": [list(each) for each in one.faults]} for name, one in swept.outcomes.items()
    }
    return {"template": swept.source.name, "error": swept.error, "outcomes": outcomes}


if __name__ == "__main__":
    sys.exit(main())
