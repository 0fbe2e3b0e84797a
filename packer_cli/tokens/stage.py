"""The tokenize stage: inputs to a finished token store, in parallel, reusing finished parts."""

from __future__ import annotations

import importlib.metadata
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from packer_cli.config import TokenizeConfig
from packer_cli.corpus.discover import discover
from packer_cli.corpus.types import CorpusSlice
from packer_cli.engine.base import Engine
from packer_cli.engine.parts import FileRange, FinishedPart, Parts, Written, write_part
from packer_cli.engine.progress import Progress, say
from packer_cli.engine.worker import Died
from packer_cli.errors import HbpackError, InputError, RunError, TooManyRejectedError
from packer_cli.files import fingerprint, remove_temporaries
from packer_cli.sizes import counted
from packer_cli.tokens.choices import choices
from packer_cli.tokens.cutting import cut_files, group_slices, is_columnar, without_crashes
from packer_cli.tokens.index import (
    INDEX_NAME,
    STORE_VERSION,
    PartInfo,
    SourceInfo,
    StoreIndex,
    read_index,
    store_fingerprint,
    write_index,
)
from packer_cli.tokens.part import WORK, PartTask, describe_tokenizer, rejects_name, tokenize_part
from packer_cli.tokens.slices import read_all
from packer_cli.tokens.tokenizer.fingerprint import tokenizer_fingerprint
from packer_cli.tokens.tokenizer.loading import read_template

_LIBRARIES = ("gigatoken", "tokenizers", "transformers", "jinja2", "minijinja", "sentencepiece")


def tokenize(
    config: TokenizeConfig,
    folder: Path,
    engine: Engine,
    progress: Progress = lambda done, total: None,
) -> tuple[StoreIndex, int]:
    """Tokenize the inputs into the store in `folder`; existing parts that are still valid are kept.

    Returns the index, and the number of records in kept parts.

    Files in the folder that holds the store are not read as inputs.

    Args:
        progress: told input bytes.

    Raises:
        UsageError: an input or the tokenizer cannot be used; the caller removes what is new in the folder.
        TooManyRejectedError: see `--max-rejected`; finished parts stay for the next run.
    """
    sources, files = discover(config.inputs, output=str(folder.parent))
    slices = cut_files(files, engine)
    if not slices:
        raise InputError("the inputs hold no data: " + ", ".join(source.name for source in sources))
    options = _sample_options(config)
    tasks = _tasks(config, options, group_slices(slices))
    before = _current_index(folder)
    parts = Parts(folder, WORK, INDEX_NAME, tasks, _slice_bytes(tasks))
    parts.find(engine, _listed(folder, before))
    kept = [part.facts for part in parts.finished.values()]
    num_rejected = sum(facts["part"]["num_rejected"] for facts in kept)
    num_reused = num_rejected + sum(facts["part"]["num_samples"] for facts in kept)

    def announce(tokenizer: dict[str, Any]) -> None:
        for line in choices(config, tokenizer):
            say(line)

    with parts.committing(progress) as commit:
        if kept:
            announce(kept[0]["tokenizer"])
        with closing(_run(engine, parts.todo, folder, None if kept else announce)) as outcomes:
            for written in outcomes:
                num_rejected += commit(written).facts["part"]["num_rejected"]
                _check_rejected(num_rejected, config.max_rejected, folder)
    _check_rejected(num_rejected, config.max_rejected, folder)
    infos = [_renamed(PartInfo(**parts.finished[task.name].facts["part"]), task) for task in tasks]
    index = StoreIndex(
        fingerprint=store_fingerprint(infos, [source.weight for source in sources]),
        tokenizer={**parts.finished[tasks[0].name].facts["tokenizer"], "name": config.tokenizer},
        options=options,
        library_versions=library_versions(),
        sources=tuple(SourceInfo(name=source.name, weight=source.weight) for source in sources),
        parts=tuple(infos),
    )
    if index != before or not (folder / INDEX_NAME).exists():
        write_index(folder, index)
    _remove_stale(folder, parts)
    parts.close()
    return index, num_reused


class _Description(NamedTuple):
    """A task: describe the tokenizer of a part."""

    of: PartTask


def _work(folder: Path, task: PartTask | _Description) -> Written | dict[str, Any]:
    return (
        describe_tokenizer(task.of)
        if isinstance(task, _Description)
        else write_part(tokenize_part, task, folder, WORK)
    )


def _run(
    engine: Engine, todo: list[PartTask], folder: Path, announce: Callable[[dict[str, Any]], None] | None
) -> Generator[Written, None, None]:
    """Yield parts as they end. A slice that crashes its worker when read is left out, and its part is tokenized again.

    Each worker loads the tokenizer anyway; the first one describes it before it starts on a part.

    Raises:
        RunError: a worker crashed over records that can be read.
    """
    while todo:
        first = [_Description(todo[0])] if announce else []
        work: list[PartTask | _Description] = [*first, *todo]
        crashed: list[tuple[PartTask, Died]] = []
        for i, result in engine.run(partial(_work, folder), work, is_risky=_is_risky):
            if isinstance(result, Written):
                yield result
            elif isinstance(result, Died):
                crashed += [(task, result)] if isinstance(task := work[i], PartTask) else []
            elif announce:
                announce(result)
        announce = None
        todo = [_without_crashes(task, died, engine) for task, died in crashed]


def _without_crashes(task: PartTask, died: Died, engine: Engine) -> PartTask:
    slices = without_crashes(task.slices, engine, read_all)
    if slices is None:
        names = ", ".join(dict.fromkeys(slice_.file.path for slice_ in task.slices[:3]))
        raise RunError(
            f"a worker process crashed ({died.signal_name}) while it encoded records of {names}; leave them out"
        )
    return replace(task, slices=slices)


def _is_risky(task: PartTask | _Description) -> bool:
    return any(is_columnar(slice_.file) for slice_ in (task.of if isinstance(task, _Description) else task).slices)


def _tasks(
    config: TokenizeConfig, options: dict[str, Any], parts: Sequence[tuple[CorpusSlice, ...]]
) -> list[PartTask]:
    files = tokenizer_fingerprint(config.tokenizer)
    shared = fingerprint(options, files, library_versions(), STORE_VERSION)
    return [
        PartTask(
            number=number,
            slices=slices,
            fingerprint=fingerprint(shared, *map(_content, slices)),
            tokenizer=config.tokenizer,
            tokenizer_fingerprint=fingerprint(files, options["chat_template"]),
            chat_template=config.chat_template,
            record_schema=config.record_schema,
            max_record_bytes=config.max_record_bytes,
            alpaca=config.alpaca,
            encoder_options=(
                ("append_eos", config.append_eos),
                ("backend", config.tokenizer_backend),
                ("loss_on", config.loss_on),
                ("plain_content", config.plain_content),
            ),
        )
        for number, slices in enumerate(parts)
    ]


def _content(slice_: CorpusSlice) -> list[Any]:
    """Identifies a slice's contents, without names. Compression is included: it decides what the bytes mean."""
    file = slice_.file
    compression = [] if file.compression == "none" else [file.compression]
    return [file.fingerprint, file.format, slice_.start, slice_.stop, *compression]


def _sample_options(config: TokenizeConfig) -> dict[str, Any]:
    """The options that shape samples."""
    return {
        "record_schema": config.record_schema,
        "max_record_bytes": config.max_record_bytes,
        "tokenizer_backend": config.tokenizer_backend,
        "chat_template": None if config.chat_template is None else read_template(config.chat_template),
        "loss_on": config.loss_on,
        "append_eos": config.append_eos,
        "alpaca": config.alpaca,
        "plain_content": config.plain_content,
    }


def library_versions() -> dict[str, str]:
    """Versions of the libraries that decide ids; with other versions parts are rewritten."""
    return {name: importlib.metadata.version(name) for name in _LIBRARIES}


def _listed(folder: Path, index: StoreIndex | None) -> dict[str, FinishedPart]:
    """The parts that the index vouches for, by name."""
    return {} if index is None else {info.path: _listed_part(folder, info, index.tokenizer) for info in index.parts}


def _listed_part(folder: Path, info: PartInfo, tokenizer: dict[str, Any]) -> FinishedPart:
    files = [FileRange(path=info.path, num_bytes=info.num_bytes, xxh3=info.xxh3)]
    if info.num_rejected:
        path = folder / rejects_name(info.path)
        num_bytes = path.stat().st_size if path.exists() else 0  # The index holds its checksum alone.
        files.append(FileRange(path=path.name, num_bytes=num_bytes, xxh3=info.rejects_xxh3 or ""))
    facts = {"part": info.model_dump(mode="json"), "tokenizer": tokenizer}
    return FinishedPart(fingerprint=info.fingerprint, files=tuple(files), facts=facts)


def _renamed(info: PartInfo, task: PartTask) -> PartInfo:
    """The part's info with the names and sources that its files have now."""
    files = [
        file.model_copy(update={"path": slice_.file.path, "source": slice_.file.source_id})
        for file, slice_ in zip(info.files, task.slices, strict=True)
    ]
    return info.model_copy(update={"files": tuple(files)})


def _current_index(folder: Path) -> StoreIndex | None:
    try:
        return read_index(folder)
    except HbpackError:
        return None


def _remove_stale(folder: Path, parts: Parts[PartTask]) -> None:
    remove_temporaries(folder)
    names = {file.path for part in parts.finished.values() for file in part.files}
    for path in [*folder.glob("part-*.arrow"), *folder.glob("rejected-*.jsonl")]:
        if path.name not in names:
            path.unlink()


def _slice_bytes(tasks: Sequence[PartTask]) -> list[int]:
    """Input bytes of each task, for the progress bar: each slice counts an equal share of its file."""
    num_slices = Counter(slice_.file.path for task in tasks for slice_ in task.slices)
    return [
        max(1, sum(slice_.file.num_bytes // num_slices[slice_.file.path] for slice_ in task.slices)) for task in tasks
    ]


def _check_rejected(num_rejected: int, most: int | None, folder: Path) -> None:
    if most is not None and num_rejected > most:
        raise TooManyRejectedError(
            f"{counted(num_rejected, 'record')} rejected, more than --max-rejected {most}; "
            f"see {folder / 'rejected-*.jsonl'!s}, or raise the limit"
        )
