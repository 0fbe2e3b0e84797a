"""The tokenize stage: inputs to a finished token store, in parallel, reusing finished parts."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from packer_cli.config import TokenizeConfig
from packer_cli.corpus.discover import discover
from packer_cli.corpus.types import CorpusSlice, Source
from packer_cli.engine.local import LocalEngine
from packer_cli.engine.worker import Died
from packer_cli.errors import HbpackError, InputError, RunError, TooManyRejectedError
from packer_cli.files import Committer, fingerprint, remove_temporaries, write_json
from packer_cli.format.checksums import find_damage
from packer_cli.sizes import counted
from packer_cli.tokens.cutting import cut_files, group_slices, is_columnar, without_crashes
from packer_cli.tokens.index import (
    STORE_VERSION,
    PartInfo,
    SourceInfo,
    StoreIndex,
    find_part_damage,
    open_part,
    read_index,
    store_fingerprint,
    write_index,
)
from packer_cli.tokens.part import (
    MARKERS,
    PartResult,
    PartTask,
    describe_tokenizer,
    marker_of,
    marker_path,
    rejects_path,
    tokenize_part,
)
from packer_cli.tokens.slices import read_all
from packer_cli.tokens.tokenizer.fingerprint import tokenizer_fingerprint
from packer_cli.tokens.tokenizer.loading import read_template

_LIBRARIES = ("gigatoken", "tokenizers", "transformers", "jinja2", "minijinja", "sentencepiece")

Progress = Callable[[int, int], None]
"""(bytes done, bytes in all)"""
Announce = Callable[[dict[str, Any]], None]
"""Told what `describe_tokenizer` says, once, before the first part is done."""


def tokenize(
    config: TokenizeConfig,
    folder: Path,
    engine: LocalEngine,
    progress: Progress = lambda done, total: None,
    announce: Announce = lambda tokenizer: None,
) -> tuple[StoreIndex, int]:
    """Tokenize the inputs into the store in `folder`; existing parts that are still valid are kept.

    Returns the index, and the number of records in kept parts.

    Files in the folder that holds the store are not read as inputs. Replacing a part first removes the index.

    Raises:
        UsageError: an input or the tokenizer cannot be used; the caller removes what is new in the folder.
        TooManyRejectedError: see `--max-rejected`; finished parts stay for the next run.
    """
    sources, files = discover(config.inputs, output=str(folder.parent))
    slices = cut_files(files, engine)
    if not slices:
        raise InputError("the inputs hold no data: " + ", ".join(source.name for source in sources))
    options = _sample_options(config)
    tasks = _tasks(config, options, group_slices(slices), folder)
    finished = _finished(folder, tasks, engine)
    todo = [task for task in tasks if task.number not in finished]
    if todo:
        (folder / MARKERS).mkdir(parents=True, exist_ok=True)  # This marks the folder as hbpack's.
        _keep_markers(folder, finished, tasks)
    sizes = _slice_bytes(tasks)
    done = sum(sizes[number] for number in finished)
    total = sum(sizes)
    num_rejected = sum(result.info.num_rejected for result in finished.values())
    num_reused = num_rejected + sum(result.info.num_samples for result in finished.values())
    progress(done, total)
    if finished:
        announce(next(iter(finished.values())).tokenizer)
    with Committer() as committer:
        for i, result in _run(engine, todo, None if finished else announce):
            assert result.temporary
            name, number = todo[i].name, todo[i].number
            committer.add(result.temporary, folder / name, marker_path(folder, name), marker_of(result))
            finished[number] = result
            done += sizes[number]
            num_rejected += result.info.num_rejected
            progress(done, total)
            _check_rejected(num_rejected, config.max_rejected, folder)
    _check_rejected(num_rejected, config.max_rejected, folder)
    return _write_index(config, options, sources, tasks, finished, folder), num_reused


class _Description(NamedTuple):
    """A task: describe the tokenizer of a part."""

    of: PartTask


def _work(task: PartTask | _Description) -> PartResult | dict[str, Any]:
    return describe_tokenizer(task.of) if isinstance(task, _Description) else tokenize_part(task)


def _run(engine: LocalEngine, todo: list[PartTask], announce: Announce | None) -> Iterator[tuple[int, PartResult]]:
    """Yield parts as they end. A slice that crashes its worker when read is left out, and its part is tokenized again.

    Each worker loads the tokenizer anyway; the first one describes it before it starts on a part.

    Raises:
        RunError: a worker crashed over records that can be read.
    """
    waiting = dict(enumerate(todo))
    first = [] if announce is None else [_Description(task) for task in todo[:1]]
    while waiting:
        numbers = list(waiting)
        crashed: dict[int, Died] = {}
        work: list[PartTask | _Description] = [*first, *waiting.values()]
        for i, result in engine.run(_work, work, is_risky=_is_risky):
            number = None if i < len(first) else numbers[i - len(first)]
            if number is None:
                if announce and isinstance(result, dict):
                    announce(result)
            elif isinstance(result, Died):
                crashed[number] = result
            elif isinstance(result, PartResult):
                yield number, result
        first = []
        waiting = {number: _without_crashes(waiting[number], died, engine) for number, died in crashed.items()}


def _without_crashes(task: PartTask, died: Died, engine: LocalEngine) -> PartTask:
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
    config: TokenizeConfig, options: dict[str, Any], parts: Sequence[tuple[CorpusSlice, ...]], folder: Path
) -> list[PartTask]:
    files = tokenizer_fingerprint(config.tokenizer)
    shared = fingerprint(options, files, library_versions(), STORE_VERSION)
    return [
        PartTask(
            number=number,
            slices=slices,
            fingerprint=fingerprint(shared, *map(_content, slices)),
            folder=folder,
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


def _finished(folder: Path, tasks: Sequence[PartTask], engine: LocalEngine) -> dict[int, PartResult]:
    """Existing parts that are intact and were made from the same input with the same options."""
    known: dict[str, PartResult] = {}
    index = _current_index(folder)
    if index:
        known = {info.path: PartResult(info=info, tokenizer=index.tokenizer) for info in index.parts}
    for task in tasks:
        marked = _read_marker(marker_path(folder, task.name))
        if marked:
            known[task.name] = marked
    same = [task for task in tasks if task.name in known and known[task.name].info.fingerprint == task.fingerprint]
    finished = {}
    for i, whole in engine.run_threads(lambda task: _is_whole(folder, known[task.name].info), same):
        if whole:
            task = same[i]
            result = known[task.name]
            finished[task.number] = PartResult(info=_renamed(result.info, task), tokenizer=result.tokenizer)
    return finished


def _renamed(info: PartInfo, task: PartTask) -> PartInfo:
    """The part's info with the names and sources that its files have now."""
    files = [
        file.model_copy(update={"path": slice_.file.path, "source": slice_.file.source_id})
        for file, slice_ in zip(info.files, task.slices, strict=True)
    ]
    return info.model_copy(update={"files": tuple(files)})


def _read_marker(path: Path) -> PartResult | None:
    try:
        data = json.loads(path.read_bytes())
        return PartResult(info=PartInfo(**data["part"]), tokenizer=data["tokenizer"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_whole(folder: Path, info: PartInfo) -> bool:
    """Whether a part's files exist, are readable and match their checksums. Price: reading the part once."""
    try:
        open_part(folder, info)
    except HbpackError:
        return False
    rejects = rejects_path(folder, info.path)
    if info.num_rejected and (info.rejects_xxh3 is None or find_damage(rejects, None, info.rejects_xxh3)):
        return False
    return find_part_damage(folder, info) is None


def _keep_markers(folder: Path, finished: dict[int, PartResult], tasks: Sequence[PartTask]) -> None:
    """Before the index is removed, write markers for the parts that it lists."""
    for number, result in finished.items():
        marker = marker_path(folder, tasks[number].name)
        if not marker.exists():
            write_json(marker, marker_of(result), sync=False)


def _write_index(
    config: TokenizeConfig,
    options: dict[str, Any],
    sources: Sequence[Source],
    tasks: Sequence[PartTask],
    finished: dict[int, PartResult],
    folder: Path,
) -> StoreIndex:
    parts = [finished[task.number].info for task in tasks]
    index = StoreIndex(
        fingerprint=store_fingerprint(parts, [source.weight for source in sources]),
        tokenizer={**finished[0].tokenizer, "name": config.tokenizer},
        options=options,
        library_versions=library_versions(),
        sources=tuple(SourceInfo(name=source.name, weight=source.weight) for source in sources),
        parts=tuple(parts),
    )
    if _current_index(folder) != index:
        write_index(folder, index)
    _remove_stale(folder, {task.name for task in tasks})
    shutil.rmtree(folder / MARKERS, ignore_errors=True)
    return index


def _current_index(folder: Path) -> StoreIndex | None:
    try:
        return read_index(folder)
    except HbpackError:
        return None


def _remove_stale(folder: Path, names: set[str]) -> None:
    remove_temporaries(folder)
    for path in folder.glob("part-*.arrow"):
        if path.name not in names:
            path.unlink()
            rejects_path(folder, path.name).unlink(missing_ok=True)


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
