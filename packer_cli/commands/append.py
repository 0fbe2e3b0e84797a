"""The append stage: more inputs for a packed set, with the options it was made with.

The result is that of `hbpack pack` of the old and the new inputs together, byte for byte. Parts of the token store
that hold old records are kept. The plan is made again from all samples, so nearly every pack changes, and every shard
is written again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from pathlib import Path

from packer_cli.commands.output_folder import APPEND_MARKER, locked_output
from packer_cli.commands.pack_corpus import pack_corpus
from packer_cli.config import TokenizeConfig, WriteConfig, validate
from packer_cli.corpus.discover import discover, find_files, real_paths
from packer_cli.corpus.types import CorpusFile, Source
from packer_cli.engine.local import Engine
from packer_cli.engine.progress import say, warn
from packer_cli.errors import ConfigError, FormatError, HbpackError, InputError, TokenizerError
from packer_cli.files import write_json
from packer_cli.folder_lock import entries_to_write
from packer_cli.format.constants import PLAN_NAME
from packer_cli.format.manifest import WriteOptions
from packer_cli.format.records import json_values, read_record
from packer_cli.format.versions import set_at
from packer_cli.remote.system import is_url
from packer_cli.shards.manifest import read_manifest
from packer_cli.shards.own_store import store_of
from packer_cli.shards.plan_file import PlanHeader, read_plan_header
from packer_cli.sizes import counted
from packer_cli.tokens.index import TOKENS, StoreIndex, StoreSource, read_index
from packer_cli.tokens.input_slices import Cut
from packer_cli.tokens.stage import Inputs, current_index
from packer_cli.tokens.tokenizer.loading import load_tokenizer


@dataclass(frozen=True, kw_only=True)
class _Noted:
    """Inputs that an append notes when it begins, for a run that goes on with it."""

    old: tuple[StoreSource, ...]
    """The inputs of the set as it was."""
    sources: tuple[StoreSource, ...]
    """The inputs of the set as it was, and the new ones."""
    write: WriteOptions


def run_append(
    folder: Path,
    inputs: Sequence[str],
    engine: Engine,
    tokenizer: str | None = None,
    moves: Sequence[str] = (),
    allow_skipped: bool = False,
    recheck: bool = False,
    max_rejected: str | None = None,
    strict: bool = False,
) -> None:
    """Add inputs to a packed set.

    A second call with the same inputs goes on with an append that was killed, or finds that all is done.

    Args:
        inputs: as for `hbpack pack`, with weights.
        tokenizer: the place where the set's tokenizer is now; None for where it was.
        moves: OLD=NEW, the places where the set's own inputs were and are now.
        allow_skipped, recheck, max_rejected, strict: see `TokenizeConfig`; the last two are about new inputs alone.

    Raises:
        InputError: the folder holds no packed set with its token store, or one of the set's own inputs is gone or has
            changed.
        TokenizerError: the tokenizer is not the set's.
    """
    read_plan_header(folder / PLAN_NAME)  # Reports a folder that holds no plan.
    entries_to_write(folder)  # Reports one that cannot be written to.
    with locked_output(folder, has_plan=True):
        header, index = _opened(folder)
        known = [info.source(number) for number, info in enumerate(index.sources)]
        given, new_files = discover(inputs, output=str(folder), allow_skipped=allow_skipped)
        noted = begun = _begun(folder, given, known)
        is_there = noted is None and len(known) > len(given) and _same(known[-len(given) :], given)
        num_old = len(noted.old) if noted else len(known) - len(given) * is_there
        sources = moved(known, moves)
        files = find_known(sources if is_there else sources[:num_old], folder)
        if not is_there:
            sources[num_old:] = [replace(source, source_id=num_old + source.source_id) for source in given]
            files += [file._replace(source_id=num_old + file.source_id) for file in new_files]
        limits = {"recheck": recheck, "max_rejected": max_rejected, "strict": strict}
        config = _tokenize_config(index, sources, tokenizer, limits)
        _check_tokenizer(config, index)
        if noted is None:
            write = _write_options(folder)
            noted = _Noted(old=_infos(known[:num_old]), sources=_infos(sources), write=write)
        write_json(folder / APPEND_MARKER, json_values(noted))
        corpus = Inputs(sources, files, lambda cuts: require_known(cuts, sources, index), num_old)
        try:
            write_config = WriteConfig(**vars(noted.write))
            pack_corpus(config, header.config, write_config, folder, engine, corpus, "append")
        except HbpackError:
            is_old = begun is None or _infos(known) == begun.old
            if is_old and current_index(folder / TOKENS) == index:
                (folder / APPEND_MARKER).unlink(missing_ok=True)  # The set is as it was.
            raise
    if is_there:
        say("the set has this data already")
    else:
        say(f"appended {counted(len(given), 'input')} to {num_old}; the plan and the shards are new")


def _opened(folder: Path) -> tuple[PlanHeader, StoreIndex]:
    header = read_plan_header(folder / PLAN_NAME)
    store = store_of(folder, header)
    if store.resolve() != (folder / TOKENS).resolve():
        raise InputError(
            f"{str(folder)!r} was planned from the token store {str(store)!r}; run hbpack tokenize there with all "
            "inputs, then plan and write"
        )
    return header, read_index(store)


def _begun(folder: Path, given: Sequence[Source], known: Sequence[Source]) -> _Noted | None:
    """Read the notes of an append that was killed; return None without them, or if the set's inputs have changed.

    Args:
        known: the inputs of the set as it is.
    """
    path = folder / APPEND_MARKER
    try:
        noted = read_record(_Noted, json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise FormatError(
            f"{str(path)!r} is damaged ({error}); remove it, and run hbpack pack with all inputs"
        ) from None
    if _infos(known) not in (noted.old, noted.sources):
        return None
    begun = [info.source(number) for number, info in enumerate(noted.sources[len(noted.old) :])]
    if not _same(begun, given):
        names = " ".join(map(_input_text, begun))
        raise InputError(
            f"an append to {str(folder)!r} did not end; finish it first with hbpack append {folder} {names}"
        )
    return noted


def _infos(sources: Sequence[Source]) -> tuple[StoreSource, ...]:
    return tuple(map(StoreSource.of, sources))


def _same(sources: Sequence[Source], others: Sequence[Source]) -> bool:
    """Whether two lists name the same inputs, with the same weights, however they are spelled."""
    first, second = ([(source.weight, *real_paths([source.path])) for source in each] for each in (sources, others))
    return first == second


def _input_text(source: Source) -> str:
    """Write an input as `parse_input` reads it."""
    if not isinstance(source.weight, float):
        return f"{source.path}@{source.weight}"
    return source.path if source.weight == 1 else f"{source.path}@{str(source.weight).removesuffix('.0')}"


def _write_options(folder: Path) -> WriteOptions:
    """Return the options that the set was written with; raise FormatError if the set is unfinished."""
    manifest = read_manifest(set_at(folder))
    if manifest.history:
        warn(
            f"the set was rebalanced to {counted(manifest.num_gpus, 'GPU')}; the new plan is for as many as the first "
            "one was, so run hbpack rebalance again"
        )
    return manifest.config.write


def _tokenize_config(
    index: StoreIndex, sources: Sequence[Source], tokenizer: str | None, limits: Mapping[str, object]
) -> TokenizeConfig:
    values = {**asdict(index.options), **limits, "tokenizer": tokenizer or index.tokenizer.name}
    return validate(TokenizeConfig, {**values, "inputs": [*map(_input_text, sources)]})


_IDENTITY = attrgetter("fingerprint", "chat_template_fingerprint")


def _check_tokenizer(config: TokenizeConfig, index: StoreIndex) -> None:
    found = load_tokenizer(config.tokenizer, chat_template=config.chat_template, eos_token=config.eos_token).describe()
    if _IDENTITY(found) != _IDENTITY(index.tokenizer):
        raise TokenizerError(
            f"{config.tokenizer} is not the tokenizer that the set was made with, or has changed since; name that one "
            "with --tokenizer, or run hbpack pack with all inputs"
        )


REMEDY = (
    "hbpack append only adds to what the set has: put the input back as it was, say where it is now with "
    "--moved OLD=NEW, or run hbpack pack with all inputs"
)


def moved(sources: Sequence[Source], moves: Sequence[str]) -> list[Source]:
    """Replace the paths of inputs by the paths where they are now.

    Args:
        moves: OLD=NEW; OLD is an input, or a folder above it, as the input was named or from the current folder.

    Raises:
        ConfigError: a move is not of this form, or no input was there.
    """
    found = list(sources)
    for move in moves:
        old, equals, new = move.partition("=")
        if not (old and equals and new):
            raise ConfigError(f"--moved {move}: write OLD=NEW, such as --moved data=/archive/data")
        now = [_moved(source, old, new) for source in found]
        if now == found:
            names = ", ".join(source.name for source in sources)
            raise ConfigError(f"--moved {move}: the set has no input at {old}; its inputs are {names}")
        found = now
    return found


def _moved(source: Source, old: str, new: str) -> Source:
    place = source.name if is_url(source.name) else os.path.join(source.folder, source.name)
    for name, start in ((source.name, old), (_absolute(place), _absolute(old))):
        rest = name.removeprefix(start.rstrip("/"))
        if rest != name and rest[:1] in ("", "/"):
            is_relative = not (is_url(new) or os.path.isabs(new))
            return replace(source, name=new.rstrip("/") + rest, folder=os.getcwd() if is_relative else "")
    return source


def _absolute(name: str) -> str:
    return name if is_url(name) else os.path.abspath(name)


def find_known(sources: Iterable[Source], folder: Path) -> list[CorpusFile]:
    """Find the files of a set's own inputs.

    Raises:
        InputError: an input is gone.
    """
    try:
        return [file for source in sources for file in find_files(source, output=str(folder))]
    except InputError as error:
        raise InputError(f"{error}; {REMEDY}") from None


def require_known(cuts: Iterable[Cut], sources: Sequence[Source], index: StoreIndex) -> None:
    """Raise InputError unless the inputs of a token store have unchanged contents, and new inputs repeat none of them.

    Args:
        cuts: the cuts of all inputs, which may be more than the store's.
    """
    was = _contents((file.source, file.path, file.fingerprint) for part in index.parts for file in part.files)
    slices = [slice_.file for cut in cuts for slice_ in cut.slices]
    now = _contents((file.source_id, file.path, file.fingerprint) for file in slices)
    for number in range(len(index.sources)):
        before, after = was.get(number, {}), now.get(number, {})
        for (old, content), (path, found) in zip(before.items(), after.items(), strict=False):
            if content != found:
                name = path if sources[number].shown(path) == old else f"{path} (instead of {old})"
                raise InputError(f"{name}: has changed since it was packed; {REMEDY}")
        if len(before) != len(after):
            more, what = (after, "is new") if len(after) > len(before) else (before, "is missing")
            path = list(more)[min(len(before), len(after))]
            raise InputError(f"{path}: {what} in {sources[number].name}, an input of the set; {REMEDY}")
    known = {content: path for contents in was.values() for path, content in contents.items()}
    for path, content in (item for number, each in now.items() if number not in was for item in each.items()):
        if content in known:
            other = "" if known[content] == path else f", as {known[content]}"
            raise InputError(f"{path} is in the set already{other}; leave it out")


def _contents(files: Iterable[tuple[int, str, str]]) -> dict[int, dict[str, str]]:
    """Group files (input, path, content) by input: content by path, in order."""
    contents: dict[int, dict[str, str]] = {}
    for source, path, content in files:
        contents.setdefault(source, {})[path] = content
    return contents
