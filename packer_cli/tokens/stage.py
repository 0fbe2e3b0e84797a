"""The tokenize stage: inputs to a finished token store, in parallel, reusing finished parts.

`packer_cli.tokens.share` is the same for the tasks of a job array.
"""

from __future__ import annotations

import datetime
import importlib.metadata
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from packer_cli.config import TokenizeConfig
from packer_cli.corpus.discover import discover
from packer_cli.corpus.records.shapes import SHAPES
from packer_cli.corpus.types import CorpusFile, CorpusSlice, Source
from packer_cli.engine.array import ArrayRecords
from packer_cli.engine.base import Engine
from packer_cli.engine.parts import Parts, find_listing
from packer_cli.engine.processes import Died
from packer_cli.engine.progress import Progress, say
from packer_cli.engine.sink import FileRange, FinishedPart, Written
from packer_cli.errors import ConfigError, FormatError, InputError, RunError, TooManyRejectedError
from packer_cli.files import fingerprint, remove_temporaries
from packer_cli.format.tokens import SampleOptions, TokenizerInfo
from packer_cli.remote.path import is_remote
from packer_cli.sizes import counted
from packer_cli.tokens.ahead import NamedTokenizer
from packer_cli.tokens.choices import choices
from packer_cli.tokens.cutting import Cut, cut_units, is_columnar, list_units, without_crashes
from packer_cli.tokens.index import (
    INDEX_NAME,
    STORE_VERSION,
    WORK,
    PartInfo,
    StoreIndex,
    StoreSource,
    read_index,
    store_fingerprint,
    version_of,
    write_index,
)
from packer_cli.tokens.part import Description, PartFacts, PartTask, work
from packer_cli.tokens.rejects import rejects_name
from packer_cli.tokens.tokenizer.files import tokenizer_fingerprint, writes_date
from packer_cli.tokens.tokenizer.loading import read_template

_LIBRARIES = ("gigatoken", "tokenizers", "transformers", "jinja2", "minijinja", "sentencepiece")


def part_tasks(config: TokenizeConfig, cuts: Sequence[Cut]) -> list[PartTask]:
    """A task for each part.

    Raises:
        TokenizerError: the tokenizer cannot be found.
    """
    options = sample_options(config)
    files = tokenizer_fingerprint(config.tokenizer)
    shared = fingerprint(options.values(), files, library_versions(config.record_schema), STORE_VERSION)
    return [
        PartTask(
            name=cut.name,
            slices=cut.slices,
            shared_fingerprint=shared,
            tokenizer=NamedTokenizer.of(config),
            tokenizer_fingerprint=fingerprint(files, options.chat_template, config.eos_token),
            options=options,
        )
        for cut in cuts
    ]


def dated(config: TokenizeConfig, folder: Path) -> TokenizeConfig:
    """The config with the date that its chat template writes: its own, that of the store in `folder`, or today's; none
    where the template writes none.

    Raises:
        ConfigError: it has a date, and the template writes none.
    """
    template = None if config.chat_template is None else read_template(config.chat_template)
    if not writes_date(config.tokenizer, template):
        if config.date is not None:
            raise ConfigError("--date has no effect, as the chat template writes no date; leave it out")
        return config
    index, pin = current_index(folder), ArrayRecords(folder / WORK).pin()
    known = index.options.date if index else pin.facts["header"]["options"].get("date") if pin else None
    first = datetime.date.fromisoformat(known) if known else datetime.date.today()
    return config.model_copy(update={"date": config.date or first})


def sample_options(config: TokenizeConfig) -> SampleOptions:
    """The options that shape samples, with the text of the chat template."""
    values = {each.name: getattr(config, each.name) for each in fields(SampleOptions)}
    template = None if config.chat_template is None else read_template(config.chat_template)
    return SampleOptions(**{**values, "chat_template": template, "date": config.date and config.date.isoformat()})


@cache
def library_versions(schema: str) -> dict[str, str]:
    """Versions of the libraries that decide ids; with other versions parts are rewritten.

    Args:
        schema: of the records; another package may bring it.
    """
    versions = {name: importlib.metadata.version(name) for name in _LIBRARIES}
    package = None if schema == "auto" else SHAPES.package(schema)
    if package is not None:
        name, version = package.rsplit(" ", 1)
        versions[name] = version
    return versions


def slice_bytes(tasks: Sequence[PartTask]) -> list[int]:
    """Input bytes of each task, for the progress bar: each slice counts an equal share of its file."""
    num_slices = Counter(slice_.file.path for task in tasks for slice_ in task.slices)
    return [
        max(1, sum(slice_.file.num_bytes // num_slices[slice_.file.path] for slice_ in task.slices)) for task in tasks
    ]


_MOST_LOOKED_AT = 16
"""Inputs of which the first records are looked at before all are tokenized."""


@dataclass(frozen=True, kw_only=True)
class Header:
    """What the index says of the whole store."""

    tokenizer: str
    """As the user named it."""
    options: SampleOptions
    library_versions: dict[str, str]
    sources: tuple[StoreSource, ...]

    def index(self, parts: Iterable[FinishedPart]) -> StoreIndex:
        """The index of these parts, in order; at least one."""
        parts = list(parts)
        infos = tuple(part.facts.part for part in parts)
        return StoreIndex(
            format_version=version_of(infos),
            fingerprint=store_fingerprint(infos, [source.share for source in self.sources]),
            tokenizer=replace(parts[0].facts.tokenizer, name=self.tokenizer),
            options=self.options,
            library_versions=self.library_versions,
            sources=self.sources,
            parts=infos,
        )


class Inputs(NamedTuple):
    """The inputs of a run, if they are not simply those of its config."""

    sources: Sequence[Source]
    files: Sequence[CorpusFile]
    require: Callable[[Sequence[Cut]], None]
    """Raises UsageError if the inputs, whose parts are given, are not what they must be."""


def tokenize(
    config: TokenizeConfig,
    folder: Path,
    engine: Engine,
    progress: Progress = lambda done, total: None,
    inputs: Inputs | None = None,
    require: Callable[[PartInfo], None] = lambda part: None,
) -> tuple[StoreIndex, int]:
    """Tokenize the inputs into the store in `folder`; existing parts that are still valid are kept.

    Returns the index, and the number of records in kept parts.

    Files in the folder that holds the store are not read as inputs.

    Args:
        progress: told input bytes.
        inputs: in place of those of the config.
        require: raises UsageError for a part that cannot be used.

    Raises:
        UsageError: an input or the tokenizer cannot be used; the caller removes what is new in the folder.
        TooManyRejectedError: see `--max-rejected`; finished parts stay for the next run.
    """
    config = dated(config, folder)
    sources, files = discover_of(config, folder) if inputs is None else inputs[:2]
    before = current_index(folder)
    cuts = cut_units(list_units(files), engine, is_first=before is None and not (folder / WORK).exists())
    if not cuts:
        raise InputError(no_data([source.name for source in sources]))
    if inputs is not None:
        inputs.require(cuts)
    tasks = part_tasks(config, cuts)
    parts = Parts(folder, WORK, INDEX_NAME, tasks, slice_bytes(tasks), facts=PartFacts)
    listed = listed_parts(folder, before)
    parts.find(engine, listed)
    # New inputs may add small files to the last part alone. It is replaced when all others are made, so that an error
    # leaves the store as it was. A remote part has its name as soon as it is written.
    replaced = listed.keys() & {task.name for task in parts.todo}
    last = replaced if len(replaced) == 1 and not is_remote(folder) else ()
    num_reused = make_parts(config, parts, folder, engine, progress, require=require, last=last)
    index = header_of(config, sources).index(renamed(parts, tasks, sources).values())
    if index != before or not (folder / INDEX_NAME).exists():
        write_index(folder, index)
    remove_stale(folder, index)
    parts.close()
    return index, num_reused


def discover_of(config: TokenizeConfig, folder: Path) -> tuple[list[Source], list[CorpusFile]]:
    """The inputs of a config whose store is in `folder`, and their files."""
    return discover(config.inputs, output=str(folder.parent), allow_skipped=config.allow_skipped)


def no_data(names: Sequence[str]) -> str:
    """Why there is no store: the inputs are empty."""
    return f"the inputs hold no data: {', '.join(names)}; name others"


def header_of(config: TokenizeConfig, sources: Sequence[Source]) -> Header:
    """The header of the store that these options make."""
    return Header(
        tokenizer=config.tokenizer,
        options=sample_options(config),
        library_versions=library_versions(config.record_schema),
        sources=tuple(map(StoreSource.of, sources)),
    )


def make_parts(
    config: TokenizeConfig,
    parts: Parts[PartTask],
    folder: Path,
    engine: Engine,
    progress: Progress,
    *,
    require: Callable[[PartInfo], None] = lambda part: None,
    last: Collection[str] = (),
) -> int:
    """Make the parts that are missing. Returns the number of records in the others.

    Args:
        require: see `tokenize`.
        last: names of parts to commit after the others.
    """
    kept: list[PartFacts] = [part.facts for part in parts.finished.values()]
    for facts in kept:
        require(facts.part)
    num_reused = sum(facts.part.num_rejected + facts.part.num_samples for facts in kept)
    num_refused = sum(facts.part.num_refused for facts in kept)

    def announce(tokenizer: TokenizerInfo) -> None:
        for line in choices(config, tokenizer):
            say(line)

    with parts.committing(progress) as commit:
        if kept:
            announce(kept[0].tokenizer)
        waiting: list[Written] = []
        try:
            with closing(_run(engine, parts.todo, folder, None if kept else announce)) as outcomes:
                for written in outcomes:
                    if written.name in last:
                        waiting.append(written)
                    else:
                        commit(written)
                    part: PartInfo = written.part.facts.part
                    require(part)
                    num_refused += part.num_refused
                    check_rejected(num_refused, config.max_rejected, folder)
        except BaseException:
            for written in waiting:
                written.sink.discard()
            raise
        for written in waiting:
            commit(written)
    check_rejected(num_refused, config.max_rejected, folder)
    return num_reused


def _run(
    engine: Engine, todo: list[PartTask], folder: Path, announce: Callable[[TokenizerInfo], None] | None
) -> Generator[Written, None, None]:
    """Yield parts as they end. A slice that crashes its worker when read is left out, and its part is tokenized again.

    Each worker loads the tokenizer anyway; the first one describes it before it starts on a part.

    Raises:
        RunError: a worker crashed over records that can be read.
    """
    while todo:
        first = [Description(todo[0], _firsts(todo))] if announce else []
        tasks: list[PartTask | Description] = [*first, *todo]
        is_risky = any(is_columnar(slice_.file) for task in todo for slice_ in task.slices)
        crashed: list[tuple[PartTask, Died]] = []
        for i, result in engine.run(partial(work, folder), tasks, is_risky=is_risky):
            if isinstance(result, Written):
                yield result
            elif isinstance(result, Died):
                crashed += [(task, result)] if isinstance(task := tasks[i], PartTask) else []
            elif announce:
                announce(result)
        announce = None
        todo = [_without_crashes(task, died, engine) for task, died in crashed]


def _firsts(todo: list[PartTask]) -> tuple[CorpusSlice, ...]:
    """The first slice of each input, of a few of them."""
    firsts: dict[int, CorpusSlice] = {}
    for slice_ in (slice_ for task in todo for slice_ in task.slices):
        firsts.setdefault(slice_.file.source_id, slice_)
    return tuple(firsts.values())[:_MOST_LOOKED_AT]


def _without_crashes(task: PartTask, died: Died, engine: Engine) -> PartTask:
    slices = without_crashes(task.slices, engine)
    if slices == task.slices:
        names = ", ".join(dict.fromkeys(slice_.file.path for slice_ in task.slices[:3]))
        raise RunError(
            f"a worker process crashed ({died.signal_name}) while it encoded records of {names}; leave them out"
        )
    return replace(task, slices=slices)


def listed_parts(folder: Path, index: StoreIndex | None) -> dict[str, FinishedPart]:
    """The parts that the index vouches for, by name."""
    return {} if index is None else {info.path: _listed_part(folder, info, index.tokenizer) for info in index.parts}


def _listed_part(folder: Path, info: PartInfo, tokenizer: TokenizerInfo) -> FinishedPart:
    files = [FileRange(path=info.path, num_bytes=info.num_bytes, xxh3=info.xxh3)]
    if info.num_rejected:
        path = folder / rejects_name(info.path)
        num_bytes = path.stat().st_size if path.exists() else 0  # The index holds its checksum alone.
        files.append(FileRange(path=path.name, num_bytes=num_bytes, xxh3=info.rejects_xxh3 or ""))
    facts = PartFacts(part=info, tokenizer=tokenizer)
    return FinishedPart(fingerprint=info.fingerprint, files=tuple(files), facts=facts)


def renamed(parts: Parts[PartTask], tasks: Sequence[PartTask], sources: Sequence[Source]) -> dict[str, FinishedPart]:
    """The finished parts, in order, with the names and sources that their files have now."""
    renamed = {}
    for task in tasks:
        part = parts.finished[task.name]
        facts: PartFacts = part.facts
        names = names_of(task, sources)
        files = tuple(
            replace(file, path=path, source=source)
            for file, (path, source) in zip(facts.part.files, names, strict=True)
        )
        renamed[task.name] = replace(part, facts=replace(facts, part=replace(facts.part, files=files)))
    return renamed


def names_of(task: PartTask, sources: Sequence[Source]) -> list[tuple[str, int]]:
    """The names and sources of a part's files, as its info has them."""
    files = [slice_.file for slice_ in task.slices]
    return [(sources[file.source_id].shown(file.path), file.source_id) for file in files]


def current_index(folder: Path) -> StoreIndex | None:
    """The index, in place or, if a run that replaces parts did not end, in the work folder."""
    try:
        return read_index(find_listing(folder, WORK, INDEX_NAME).parent)
    except (InputError, FormatError):
        return None


def remove_stale(folder: Path, index: StoreIndex) -> None:
    """Remove what another run left: temporary files, and parts that the index does not list."""
    remove_temporaries(folder)
    names = {name for part in index.parts for name in (part.path, part.num_rejected and rejects_name(part.path))}
    for path in [*folder.glob("part-*.arrow"), *folder.glob("rejected-*.jsonl")]:
        if path.name not in names:
            path.unlink()


def check_rejected(num_refused: int, most: int | None, folder: Path) -> None:
    """Raise TooManyRejectedError if more records were rejected than `--max-rejected` allows.

    Args:
        num_refused: the rejected records, without those that carry no loss: they are as they should be.
    """
    if most is not None and num_refused > most:
        raise TooManyRejectedError(
            f"{counted(num_refused, 'record')} rejected, more than --max-rejected {most}; "
            f"see {folder / 'rejected-*.jsonl'!s}, or raise the limit"
        )
