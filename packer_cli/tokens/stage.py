"""The tokenize stage: inputs to a finished token store, in parallel, reusing finished parts.

The tasks of a job array make their shares of the parts, and agree on the facts in `packer_cli.tokens.agreement`.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import fields, replace
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from packer_cli.config import TokenizeConfig
from packer_cli.corpus.discover import discover
from packer_cli.corpus.records.shapes import SHAPES
from packer_cli.corpus.sample import Stratum, sample_files
from packer_cli.corpus.types import CorpusFile, Source
from packer_cli.corpus.unchanged import is_settled
from packer_cli.engine.array import ArrayRecords, TaskShare, merged
from packer_cli.engine.local import Engine
from packer_cli.engine.output import Output, Parts
from packer_cli.engine.processes import Died
from packer_cli.engine.progress import Progress, say
from packer_cli.engine.sink import FinishedPart, WrittenFile
from packer_cli.errors import ConfigError, InputError, RunError
from packer_cli.files import intact_or_none
from packer_cli.format.tokens import SampleOptions, TokenizerInfo
from packer_cli.remote.path import paths_below
from packer_cli.sizes import counted, format_bytes
from packer_cli.tokens.agreement import agreed, index_of, names_of, no_data, remove_stale, require_one_version, vouches
from packer_cli.tokens.choices import changed, choices
from packer_cli.tokens.exclusions import Exclusions
from packer_cli.tokens.index import INDEX_NAME, TOKENS, WORK, PartInfo, StoreIndex, read_index
from packer_cli.tokens.input_slices import Cut, cut_units, is_columnar, list_units, without_crashes
from packer_cli.tokens.known_inputs import KnownInputs, KnownSlice
from packer_cli.tokens.limits import require_accepted
from packer_cli.tokens.part import Description, PartFacts, PartTask, part_tasks, work
from packer_cli.tokens.part_sample import PartSample, tokenize_sample
from packer_cli.tokens.tokenizer.files import writes_date
from packer_cli.tokens.tokenizer.loading import read_template

_LIBRARIES = ("gigatoken", "tokenizers", "transformers", "jinja2", "sentencepiece")


def _dated(config: TokenizeConfig, folder: Path) -> TokenizeConfig:
    """Give the config the date that its chat template writes: its own, that of the store in `folder`, or today's; none
    where the template writes none.

    Raises:
        ConfigError: the config has a date, and the template writes none.
    """
    template = None if config.chat_template is None else read_template(config.chat_template)
    if not writes_date(config.tokenizer, template):
        if config.date is not None:
            raise ConfigError("--date has no effect, as the chat template writes no date; leave it out")
        return config
    index, pin = current_index(folder), ArrayRecords(folder / WORK).pin()
    known = (index and index.options.date) or (pin and pin.agreed.get("--date"))
    first = datetime.date.fromisoformat(known) if known else datetime.date.today()
    return config.model_copy(update={"date": config.date or first})


def sample_options(config: TokenizeConfig) -> SampleOptions:
    """Collect the options that shape samples, with the text of the chat template."""
    values = {each.name: getattr(config, each.name) for each in fields(SampleOptions)}
    template = None if config.chat_template is None else read_template(config.chat_template)
    return SampleOptions(**{**values, "chat_template": template, "date": config.date and config.date.isoformat()})


@cache
def library_versions(schema: str) -> dict[str, str]:
    """Return the versions of the libraries that decide ids; with other versions, parts are rewritten.

    Args:
        schema: the format of the records; another package may bring it.
    """
    versions = {name: importlib.metadata.version(name) for name in _LIBRARIES}
    package = None if schema == "auto" else SHAPES.package(schema)
    if package is not None:
        name, version = package.rsplit(" ", 1)
        versions[name] = version
    return versions


def slice_bytes(tasks: Sequence[PartTask]) -> list[int]:
    """Estimate the input bytes of each task, for the progress bar: each slice counts an equal share of its file."""
    num_slices = Counter(slice_.file.path for task in tasks for slice_ in task.slices)
    return [
        max(1, sum(slice_.file.num_bytes // num_slices[slice_.file.path] for slice_ in task.slices)) for task in tasks
    ]


_MOST_OF_SAMPLE = 4
"""Most workers that share the sample of some files."""


class Inputs(NamedTuple):
    """The inputs of a run, if they are not simply the inputs of its config."""

    sources: Sequence[Source]
    files: Sequence[CorpusFile]
    require: Callable[[Sequence[Cut]], None]
    """Function that raises UsageError if the inputs, whose parts are given, are not as they must be."""
    first: int = 0
    """The first input that `--max-rejected` and `--strict` are about; those before it were accepted earlier."""


class StoreOutput(Output[StoreIndex]):
    """The token store in an output folder: the parts of each task, then the index.

    Existing parts that are still valid are kept. Files in the output folder are not read as inputs.
    """

    command, name, facts = "tokenize", "the token store", PartFacts

    def __init__(
        self,
        config: TokenizeConfig,
        folder: Path,
        inputs: Inputs | None = None,
        require: Callable[[PartInfo], None] = lambda part: None,
    ) -> None:
        """Read nothing yet.

        Args:
            folder: the output folder.
            inputs: inputs in place of the config's.
            require: raises UsageError for a part that cannot be used.
        """
        self._config, self.folder, self._given, self._require = config, folder, inputs, require
        self.store = folder / TOKENS
        self.work, self.listing = self.store / WORK, self.store / INDEX_NAME

    def _list_inputs(self) -> None:
        self._begun = time.time()
        self._known = KnownInputs(self.store, recheck=self._config.recheck)
        self._config = config = _dated(self._config, self.store)
        self._inputs = self._given or Inputs(
            *discover(config.inputs, output=str(self.folder), allow_skipped=config.allow_skipped), lambda cuts: None
        )
        self._before = current_index(self.store)
        self._header = StoreIndex(
            fingerprint="",
            tokenizer=TokenizerInfo(name=config.tokenizer),
            options=sample_options(config),
            library_versions=library_versions(config.record_schema),
            sources=tuple(self._inputs.sources),
            parts=(),
        )
        self._exclusions = Exclusions(config.exclude, self.folder, self._header.options.kept, self._before)

    def write_share(
        self, engine: Engine, progress: Progress, share: TaskShare
    ) -> tuple[StoreIndex | None, int, StoreIndex | None]:
        """Make the parts of a share that are missing, and record it. A task reads only the files that it overlaps.

        Returns:
            The index of these parts alone, None if there are none; the number of records in kept parts; and the index
            of the store, if it was complete already.

        Args:
            progress: called with input bytes.

        Raises:
            UsageError: an input or the tokenizer cannot be used; the caller removes the new files in the folder.
            ConfigError: the task does not agree with the others; see `TaskShare.join`.
        """
        self._list_inputs()
        config, folder, before, header, task = self._config, self.store, self._before, self._header, share.task
        sources, files, require_inputs, _ = self._inputs
        units = list_units(files, task.num_tasks)
        total = units[-1].stop if units else 0
        near = [
            unit for unit in units if (task.overlaps if unit.is_divided else task.takes)(unit.start, unit.stop, total)
        ]
        # What is given is compared with what the store has, where any part may be found again.
        marked = {path.name.removesuffix(".json") for path in paths_below(self.work)}
        made = None if self._given or before else marked
        found = cut_units(near, engine, made=made, find_known=self._known.find)
        cuts = [cut for cut in found if task.takes(cut.start, cut.stop, total)]
        if share.is_whole and not cuts:
            raise InputError(no_data([source.name for source in sources]))
        require_inputs(cuts)
        tasks = part_tasks(config, header, cuts)
        is_there = not share.is_whole and self.listing.exists() and ArrayRecords(self.work).pin() is None
        repairs = is_there and vouches(before, header, sources, files, tasks) and self._exclusions.are_of(before)
        parts = Parts(folder, WORK, INDEX_NAME, tasks, slice_bytes(tasks), facts=PartFacts)
        if not repairs:
            share.join(agreed(config, replace(header, excluded=self._exclusions.agreed), files))
        parts.find(engine, _listed_parts(folder, before, tasks))
        if before and (kept := [task for task in tasks if task.is_kept]):
            lost = [before.parts[int(task.slices[0].file.path)] for task in kept if task.name not in parts.finished]
            why = changed(before, header, before.tokenizer, {}) + [f"{part.path} is damaged" for part in lost]
            if why:
                what = f"inputs are gone, so their tokens cannot be made again, and {', '.join(why)}"
                raise InputError(f"--gone keep: {what}; put them back, or take them out of the set with --gone drop")
        try:
            read = [slice_.file for task in tasks for slice_ in task.slices] if before and share.is_whole else []
            contents = {sources[file.source_id].shown(file.path): file.fingerprint for file in read}
            num_reused = self._make_parts(parts, engine, progress, contents)
        except RunError:  # A file may have changed without a trace.
            self._known.forget()
            raise
        finished = _renamed(parts, tasks, sources, self._begun)
        self._exclusions.leave_out(engine, folder, finished)
        if not repairs:
            share.record(finished)
        index = index_of(header, finished.values()) if finished else None
        return index, num_reused, before if repairs else None

    def sample(self, engine: Engine) -> tuple[Sequence[Source], list[tuple[Stratum, list[PartSample]]], float, int]:
        """Tokenize a sample of the inputs in memory, by several workers at a time, as a run does; write nothing.

        Returns:
            The inputs; their files by kind, each kind with its sample; the seconds that reading these took; and about
            how many records are left out on request, which the sample has.
        """
        self._list_inputs()
        begun = time.perf_counter()
        strata = sample_files(self._inputs.files)
        reading = time.perf_counter() - begun
        found: list[tuple[Stratum, list[PartSample]]] = [(stratum, []) for stratum in strata]
        number = min(engine.workers, _MOST_OF_SAMPLE)
        cuts = [
            Cut(name=str(i), slices=slices, start=0, stop=0)
            for i, stratum in enumerate(strata)
            for first in range(number)
            if (slices := tuple(place.slice_ for place in stratum.places[first::number] if place.num_bytes))
        ]
        for i, result in engine.run(tokenize_sample, part_tasks(self._config, self._header, cuts)):
            assert isinstance(result, PartSample)  # None is risky.
            found[int(cuts[i].name)][1].append(result)
        return self._inputs.sources, found, reading, len(self._exclusions)

    def complete(self, engine: Engine, share: TaskShare, parts: Sequence[Mapping[str, FinishedPart]]) -> StoreIndex:
        """Write the index of the finished parts, see `Output`.

        Raises:
            TooManyRejectedError: see `--max-rejected` and `--strict`; finished parts stay for the next run.
            RunError: the inputs hold no data, or tasks have read different versions of a file. The records of those
                that have to run again are then removed.
        """
        sources, files, _, first = self._inputs
        finished = merged(parts)
        if not finished:
            raise RunError(no_data([source.name for source in sources]))
        if not share.is_whole:
            require_one_version(share, parts, sources, files)
        index = index_of(self._header, finished.values())
        require_accepted(index, self.store, first, self._config.max_rejected, strict=self._config.strict)
        index = self._exclusions.remember(index, finished.values())
        if index != self._before or not self.listing.exists():
            index.write(self.store)
        remove_stale(self.store, index)
        facts = (part.facts for part in finished.values() if part.facts.slices)
        self._known.write(sources, (pair for each in facts for pair in zip(each.part.files, each.slices, strict=True)))
        return index

    def _make_parts(self, parts: Parts[PartTask], engine: Engine, progress: Progress, files: Mapping[str, str]) -> int:
        """Make the parts that are missing, and return the number of records in the others; see `changed` for files."""
        kept: list[PartFacts] = [part.facts for part in parts.finished.values()]
        for facts in kept:
            self._require(facts.part)
        num_reused = sum(facts.part.num_rejected + facts.part.num_samples for facts in kept)
        todo = [parts.sizes[task.name] for task in parts.todo]

        def announce(tokenizer: TokenizerInfo) -> None:
            for line in choices(self._config, tokenizer):
                say(line)
            found = changed(self._before, self._header, tokenizer, files) if self._before else []
            if found or (self._before and todo):
                what = ", ".join(found) or "damaged parts, or other files of the tokenizer"
                amount = f"{len(todo):,} of {counted(len(parts.sizes), 'part')}"
                say(f"changed: {what}; {amount} to tokenize ({format_bytes(sum(todo))})")

        parts.begin(progress)
        if kept:
            announce(kept[0].tokenizer)
        with closing(_run(engine, parts.todo, self.store, None if kept else announce)) as outcomes:
            for part in outcomes:
                parts.mark(part)
                self._require(part.facts.part)
        return num_reused

    def describe(self, result: StoreIndex) -> str:
        """Describe the store by its numbers of samples, tokens and rejected records, see `Output`."""
        return (
            f"{counted(result.total('num_samples'), result.unit)}, {counted(result.total('num_tokens'), 'token')}, "
            f"{result.total('num_rejected'):,} rejected"
        )


def _run(
    engine: Engine, todo: list[PartTask], folder: Path, announce: Callable[[TokenizerInfo], None] | None
) -> Generator[FinishedPart, None, None]:
    """Yield parts as they end. A slice that crashes its worker when read is left out, and its part is tokenized again.

    Each worker loads the tokenizer anyway; the first one describes it before it starts on a part.

    Raises:
        RunError: a worker crashed over records that can be read.
    """
    while todo:
        first = [Description(todo[0])] if announce else []
        tasks: list[PartTask | Description] = [*first, *todo]
        is_risky = any(is_columnar(slice_.file) for task in todo for slice_ in task.slices)
        crashed: list[tuple[PartTask, Died]] = []
        for i, result in engine.run(partial(work, folder), tasks, is_risky=is_risky):
            if isinstance(result, FinishedPart):
                yield result
            elif isinstance(result, Died):
                crashed += [(task, result)] if isinstance(task := tasks[i], PartTask) else []
            elif announce:
                announce(result)
        announce = None
        todo = [_without_crashes(task, died, engine) for task, died in crashed]


def _without_crashes(task: PartTask, died: Died, engine: Engine) -> PartTask:
    slices = without_crashes(task.slices, engine)
    if slices == task.slices:
        names = ", ".join(dict.fromkeys(slice_.file.path for slice_ in task.slices[:3]))
        raise RunError(
            f"a worker process crashed ({died.signal_name}) while it encoded records of {names}; leave them out"
        )
    return replace(task, slices=slices)


def _listed_parts(folder: Path, index: StoreIndex | None, tasks: Sequence[PartTask]) -> dict[str, FinishedPart]:
    """Find the parts of these tasks that the index vouches for, wherever they stand in it, by the tasks' names."""
    if index is None:
        return {}
    listed: dict[str, FinishedPart] = {}
    for at, info in enumerate(index.parts):
        files = [WrittenFile(path=info.path, num_bytes=info.num_bytes, xxh3=info.xxh3)]
        if info.rejects_xxh3:
            path = folder / info.rejects_name
            num_bytes = path.stat().st_size if path.exists() else 0  # The index holds its checksum alone.
            files.append(WrittenFile(path=path.name, num_bytes=num_bytes, xxh3=info.rejects_xxh3))
        facts = PartFacts(part=info, tokenizer=index.tokenizer)
        part = FinishedPart(name="", fingerprint=info.fingerprint, files=tuple(files), facts=facts)
        listed[info.fingerprint] = listed[f"{at}"] = part
    keys = {task.name: task.slices[0].file.path if task.is_kept else task.fingerprint for task in tasks}
    return {name: replace(listed[key], name=name) for name, key in keys.items() if key in listed}


def _renamed(
    parts: Parts[PartTask], tasks: Sequence[PartTask], sources: Sequence[Source], begun: float
) -> dict[str, FinishedPart]:
    """Return the finished parts, in order, with the names, sources and stamps that their files have now.

    Args:
        begun: a moment before any file was read.
    """
    renamed = {}
    for task in tasks:
        part = parts.finished[task.name]
        facts: PartFacts = part.facts
        if task.is_kept:
            renamed[task.name] = part
            continue
        names = names_of(task, sources)
        files = tuple(
            replace(file, path=path, source=source)
            for file, (path, source) in zip(facts.part.files, names, strict=True)
        )
        slices = tuple(
            replace(found, is_settled=not slice_.unreadable and is_settled(slice_.file.path, found.stamp, begun))
            for slice_, found in zip(task.slices, facts.slices or map(KnownSlice.of, task.slices), strict=True)
        )
        renamed[task.name] = replace(part, facts=replace(facts, part=replace(facts.part, files=files), slices=slices))
    return renamed


def current_index(folder: Path) -> StoreIndex | None:
    """Read the index; return None if it is missing or damaged."""
    return intact_or_none(read_index, folder)
