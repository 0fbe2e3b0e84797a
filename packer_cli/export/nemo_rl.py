"""Packed conversations as JSON lines, for NeMo-RL's SFT on `megatron_sft_packed` data: `part-00000.jsonl ...`.

One row a pack: `{"messages": [...]}`, the messages of its samples one after another, each with its role and content.
NeMo-RL begins a conversation at each system message, and tokenizes again, by the template of its prompt format. So
only conversations that begin with their only system message have a place, and the packs come back where the set was
tokenized by the same template. As NeMo-RL chooses the loss itself, by the prompt format, the set's is lost.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer_cli.corpus.types import Document
from packer_cli.engine.progress import say, warn
from packer_cli.engine.sink import Sink
from packer_cli.errors import InputError
from packer_cli.export.job import Format, Job, Part, PartFacts
from packer_cli.export.listing import WORK, ExportListing
from packer_cli.export.records import SetRecords, TextFile, joined_texts, open_texts, written_texts
from packer_cli.format.manifest import Manifest
from packer_cli.sizes import counted

PROMPT_FORMATS = {
    "identity": "d256c4769d99c69b21cbfd564e843c48",
    "nemotron-nano-v2": "2271c5bd0bfeb57a44b1817aeb29a839",
    "nemotron-h-aligned": "95834a54ea46affd18ce791c4cfa9691",
}
"""NeMo-RL's prompt formats, and the xxh3-128 of the template of each."""

_NO_FORMAT = "PROMPT_FORMAT"
_UNREAD = ("tool_calls", "function_call", "reasoning_content", "thinking", "reasoning")
"""Keys of messages that chat templates write, and NeMo-RL does not read."""


class Exporter(Format):
    """See the module."""

    needs_one_capacity = True
    bytes_of = (5, 120, 0)
    """The length of the texts is not known."""

    usage = (
        "uv run examples/run_sft.py data.train.dataset_name=megatron_sft_packed "
        "++data.train.data_path={output}/part-\\*.jsonl ++data.train.chat_key=messages "
        "++data.train.megatron_sft.prompt_format={prompt_format} data.max_input_seq_length={capacity} "
        "data.shuffle=false policy.max_total_sequence_length={capacity} policy.train_micro_batch_size=1 "
        "policy.dtensor_cfg.enabled=false policy.megatron_cfg.enabled=true "
        "policy.megatron_cfg.context_parallel_size={context_parallel_size}"
    )

    def describe(self, source: Path, manifest: Manifest, groups: Sequence[int]) -> dict[str, Any]:
        """Describe the prompt format, None if no template of the set is one, and a context-parallel size that fits."""
        prompt_format = prompt_format_of(manifest)
        loss_on = manifest.config.tokens.loss_on
        if prompt_format is None:
            warn(
                f"the chat template of {str(source)!r} is not one of NeMo-RL's, which tokenizes again: rows keep "
                "their lengths only if its prompt_format gives the same tokens; pack with --chat-template, the "
                f"template of {', '.join(PROMPT_FORMATS)}"
            )
        elif loss_on != (wanted := "all" if prompt_format == "identity" else "completion"):
            warn(
                f"NeMo-RL trains as with --loss-on {wanted} where prompt_format is {prompt_format}, and the set was "
                f"packed with --loss-on {loss_on}"
            )
        return {"prompt_format": prompt_format, "context_parallel_size": context_parallel_size_of(manifest, groups)}

    def usage_of(self, output: str, listing: ExportListing) -> str | None:
        """See `Format`."""
        known: dict[str, Any] = {**listing}
        prompt_format = known["prompt_format"]
        text = self.usage.format(
            **{**known, "prompt_format": prompt_format or _NO_FORMAT, "output": shlex.quote(output)}
        )
        if known["context_parallel_size"] > 1:
            text += " policy.sequence_packing.enabled=true"
        if prompt_format is None:
            text += f", with a {_NO_FORMAT} whose template gives the tokens of the set's own"
        return text

    @contextmanager
    def preparing(self, job: Job, parts: Sequence[Part]) -> Iterator[TextFile]:
        """Read the conversations of these parts again, and keep them in the work folder.

        Raises:
            InputError: an input is gone or has changed, or a sample has no place in the format.
            FormatError: the token store of the set is damaged.
        """
        records = SetRecords(job.source)
        _check_plain_content(job.manifest, records)
        wanted = _wanted_samples(job, parts, records)
        num_wanted = int(wanted.sum())
        say(f"reading {counted(num_wanted, 'conversation')} again from the inputs")
        texts = ((sample, _text_of(records, sample, document)) for sample, document in records.read(wanted))
        with written_texts(texts, len(wanted), job.folder / WORK / f"texts-{parts[0].number:05d}") as file:
            yield file

    def write_part(self, job: Job, part: Part, sink: Sink) -> PartFacts:
        """Write one JSONL file."""
        assert isinstance(job.prepared, TextFile)
        texts = open_texts(job.prepared)
        with sink.file(f"part-{part.number:05d}.jsonl") as file:
            for packs in job.batches(part.first, part.stop):
                samples = job.packed.lists("sample_ids", packs)
                file.write(joined_texts(texts, samples, b'{"messages":[', b",", b"]}\n"))
        return {}


def prompt_format_of(manifest: Manifest) -> str | None:
    """Find the prompt format whose template tokenized the set."""
    template = manifest.config.tokens.chat_template
    found = manifest.tokenizer.chat_template_fingerprint
    if template is not None:
        # Jinja leaves out a line feed at the end, which most files have.
        found = xxhash.xxh3_128_hexdigest(template.removesuffix("\n").encode())
    return next((name for name, known in PROMPT_FORMATS.items() if known == found), None)


def context_parallel_size_of(manifest: Manifest, groups: Sequence[int]) -> int:
    """Return the number of GPUs that share a row, if the samples of all groups are aligned for as many; else 1.

    NeMo-RL pads each conversation to a multiple of twice the size, and the capacity must be one.
    """
    chosen = [manifest.groups[group] for group in groups]
    size = max(group.sp_size * group.cp_size for group in chosen)
    fits = all(group.align % (2 * size) == 0 and group.capacity % (2 * size) == 0 for group in chosen)
    return size if fits else 1


def _check_plain_content(manifest: Manifest, records: SetRecords) -> None:
    """Check that no special token's text was packed as text: NeMo-RL always takes the text for the token."""
    first = next((part for part in records.store.index.parts if part.num_with_special), None)
    if manifest.config.tokens.plain_content and first is not None:
        raise InputError(
            f"{first.files[0].path}: holds the text of a special token, which --plain-content took for text, and "
            "NeMo-RL takes for the token; run hbpack pack again without --plain-content"
        )


def _wanted_samples(job: Job, parts: Sequence[Part], records: SetRecords) -> NDArray[np.bool_]:
    """Find the samples of the store that the packs of these parts hold, bool[n].

    Raises:
        InputError: one is a piece, or has tokens that NeMo-RL would not give it.
    """
    lengths = records.store.lengths()
    wanted = np.zeros(len(lengths), dtype=np.bool_)
    cut, closed = np.zeros_like(wanted), np.zeros_like(wanted)
    # It may have been added to conversations; no template of NeMo-RL ends with one of its own.
    is_added = prompt_format_of(job.manifest) is not None and job.manifest.config.tokens.append_eos != "never"
    eos = job.manifest.tokenizer.eos_token_id if is_added else None
    for packs in (packs for part in parts for packs in job.batches(part.first, part.stop)):
        samples, starts = (job.packed.lists(name, packs).values for name in ("sample_ids", "sample_starts"))
        sizes = job.packed.sample_lengths(packs).values
        wanted[samples] = True
        cut[samples[(starts != 0) | (sizes != lengths[samples])]] = True
        if eos is not None:
            last = job.packed.lists("input_ids", packs).values[np.cumsum(sizes, dtype=np.int64) - 1]
            closed[samples[last == eos]] = True
    if cut.any():
        raise InputError(
            f"{records.where(int(cut.argmax()))}: was cut to the capacity, and NeMo-RL cannot read a piece of a "
            "conversation; run hbpack pack again with --overflow drop, or a larger capacity"
        )
    if closed.any():
        raise InputError(
            f"{records.where(int(closed.argmax()))}: ends with an EOS token that its template did not write, so "
            "NeMo-RL would not; run hbpack pack again with --append-eos never"
        )
    return wanted


def _text_of(records: SetRecords, sample: int, document: Document | None) -> bytes:
    import orjson

    try:
        messages = conversation_of(document)
    except ValueError as error:
        raise InputError(f"{records.where(sample)}: {error}, and run hbpack pack again") from None
    return orjson.dumps(messages)[1:-1]


def conversation_of(document: Document | None) -> list[dict[str, str]]:
    """Return the messages of a record as NeMo-RL reads them.

    Raises:
        ValueError: it would not read them as they are; the message gives the reason, the rule and a remedy.
    """
    if document is None or not document.messages or document.kind == "alpaca":
        raise ValueError("has no messages, and NeMo-RL reads nothing else; leave the input out")
    if document.tools:
        raise ValueError('has "tools", which NeMo-RL does not read; leave the record out')
    messages = document.messages
    first, last = messages[0]["role"], messages[-1]["role"]
    if first != "system":
        raise ValueError(
            f"begins with a message of role {first!r}, and NeMo-RL tells conversations apart by a system message at "
            "their beginning; add one, whose content may be empty"
        )
    if last != "assistant":
        raise ValueError(
            f"ends with a message of role {last!r}, and NeMo-RL needs the assistant's there; add that, or leave the "
            "record out"
        )
    roles = [None, *(message["role"] for message in messages)]
    for number, message in enumerate(messages):
        _check_message(message, roles[number], f"messages[{number}]")
    if document.weights or document.num_prompt:
        _check_loss(document)
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def _check_message(message: dict[str, Any], role_before: str | None, where: str) -> None:
    role, content = message["role"], message.get("content")
    if role not in ("system", "user", "assistant", "tool"):
        raise ValueError(
            f"{where} has role {role!r}, and NeMo-RL knows only system, user, assistant and tool; change the role"
        )
    if role == "system" and role_before is not None:
        raise ValueError(
            f"{where} is another system message, at which NeMo-RL would begin another conversation; make one of both"
        )
    unread = next((key for key in _UNREAD if message.get(key)), None)
    if unread is not None:
        raise ValueError(f'{where} has "{unread}", and NeMo-RL reads only the content; write it there')
    if not isinstance(content, str):
        raise ValueError(f"{where}: NeMo-RL needs a content that is a string; make it one, or leave the record out")
    if role == "assistant" and not content:
        raise ValueError(f"{where}: NeMo-RL refuses an empty content of the assistant; leave the record out")
    if role == "assistant" and role_before not in ("user", "tool"):
        raise ValueError(
            f"{where}: NeMo-RL needs a user's or a tool's message before each of the assistant, and this follows "
            f"role {role_before!r}; join the two, or leave the record out"
        )


def _check_loss(document: Document) -> None:
    """Check that no prompt or weight of 0 leaves an answer out of the loss, which NeMo-RL cannot do."""
    messages = document.messages
    weights = document.weights or (1.0,) * len(messages)
    for number, message in enumerate(messages):
        if message["role"] == "assistant" and (number < document.num_prompt or not weights[number]):
            raise ValueError(
                f"messages[{number}] carries no loss, and NeMo-RL trains on all that the assistant says; leave the "
                "record out"
            )
