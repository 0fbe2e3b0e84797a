"""The append stage: more inputs for a packed set, with the options it was made with.

The result is that of `hbpack pack` of the old and the new inputs together, byte for byte. Parts of the token store
that hold old records are kept. The plan is made again from all samples, so nearly every pack changes, and every shard
is written again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from packer_cli.commands.output_folder import APPEND_MARKER, locked_output
from packer_cli.commands.pack_corpus import pack_corpus
from packer_cli.config import TokenizeConfig, WriteConfig, validate
from packer_cli.config.models import AppendConfig
from packer_cli.corpus.discover import cut_file, discover, find_files, real_paths
from packer_cli.corpus.input_list import MARK
from packer_cli.corpus.types import CorpusFile, Source
from packer_cli.corpus.unchanged import content_of
from packer_cli.engine.local import Engine
from packer_cli.engine.progress import say, warn
from packer_cli.errors import ConfigError, FormatError, GoneError, HbpackError, InputError, TokenizerError
from packer_cli.files import intact_or_none, write_json
from packer_cli.format.constants import PLAN_NAME, STORE_COPY
from packer_cli.format.manifest import WriteOptions
from packer_cli.format.records import json_values, read_record
from packer_cli.format.versions import set_at, version_folders
from packer_cli.remote.system import is_url
from packer_cli.shards.manifest import read_manifest
from packer_cli.shards.own_store import store_of
from packer_cli.shards.plan_file import PlanHeader, read_plan_header
from packer_cli.sizes import counted
from packer_cli.tokens.index import TOKENS, PartFile, StoreIndex, read_index
from packer_cli.tokens.input_slices import GROUP_BYTES, Cut
from packer_cli.tokens.stage import Inputs, current_index
from packer_cli.tokens.tokenizer.loading import LoadedTokenizer


@dataclass(frozen=True, kw_only=True)
class _Noted:
    """Inputs that an append notes when it begins, for a run that goes on with it."""

    old: tuple[Source, ...]
    """The inputs of the set as it was."""
    sources: tuple[Source, ...]
    """The inputs of the set as it will be."""
    given: tuple[Source, ...]
    """Inputs that were named."""


def run_append(
    folder: Path,
    inputs: Sequence[str],
    engine: Engine,
    config: AppendConfig,
) -> None:
    """Add inputs to a packed set, and the files that came late to those that it has.

    A second call with the same inputs goes on with an append that was killed, or finds that all is done.

    Args:
        inputs: as for `hbpack pack`, with weights; maybe none.

    Raises:
        InputError: the folder holds no packed set with its token store, or one of the set's own inputs is gone or has
            changed.
        TokenizerError: the tokenizer is not the set's.
    """
    read_plan_header(folder / PLAN_NAME)  # Reports a folder that holds no plan.
    with locked_output(folder):
        header, index = _opened(folder)
        known = index.sources
        given, new_files = discover(inputs, output=str(folder), allow_skipped=config.allow_skipped)
        begun = _begun(folder, given, known)
        places = range(len(known) - len(given) + 1)
        is_there = any(_same(known[at : at + len(given)], given) for at in places)
        own = moved(known, config.moved)
        found = _find_known(index, own, folder, engine, [] if is_there else new_files, config.gone)
        late, files = discover(found.late, output=str(folder))
        num_own, num_late = len(found.sources), len(late)
        if not is_there:
            files += [file._replace(source_id=num_late + file.source_id) for file in new_files]
            late += given
        files = found.files + [file._replace(source_id=num_own + file.source_id) for file in files]
        sources = found.sources + late
        if not sources:
            raise InputError("all files of the set are gone, and nothing would be left; keep them with --gone keep")
        tokenize = _tokenize_config(index, sources, config)
        write = WriteConfig(**vars(_write_options(folder)), keep=config.keep)
        old = begun.old if begun else known
        noted = _Noted(old=old, sources=tuple(sources), given=tuple(given))
        write_json(folder / APPEND_MARKER, json_values(noted))
        corpus = Inputs(sources, files, lambda cuts: _require_known(cuts, found, num_own + num_late), num_own)
        try:
            pack_corpus(tokenize, header.config, write, folder, engine, corpus, "append")
        except HbpackError:
            is_old = begun is None or known == begun.old
            if is_old and current_index(folder / TOKENS) == index:
                (folder / APPEND_MARKER).unlink(missing_ok=True)  # The set is as it was.
            raise
    if begun is None and is_there and current_index(folder / TOKENS) == index:
        say("the set has this data already")
    else:
        done = f"appended {counted(len(late), 'input')} to {num_own}" if late else "the set now follows its inputs"
        say(f"{done}; the plan and the shards are new")


def _opened(folder: Path) -> tuple[PlanHeader, StoreIndex]:
    header = read_plan_header(folder / PLAN_NAME)
    store = store_of(folder, header)
    if store.resolve() != (folder / TOKENS).resolve():
        raise InputError(
            f"{str(folder)!r} was planned from the token store {str(store)!r}; run hbpack tokenize there with all "
            "inputs, then plan and write"
        )
    index, home = read_index(store), set_at(folder)
    copies = {each: intact_or_none(read_index, each, STORE_COPY) for each in version_folders(folder)}
    of_set = copies.pop(home, None)
    if of_set and of_set.fingerprint != index.fingerprint in {each.fingerprint for each in copies.values() if each}:
        why = "is that of an earlier version, as a killed restore leaves it"
        raise InputError(f"the token store {str(store)!r} {why}; run hbpack restore {folder}@N again")
    return header, index


def _begun(folder: Path, given: Sequence[Source], known: tuple[Source, ...]) -> _Noted | None:
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
    if known not in (noted.old, noted.sources):
        return None
    if not _same(noted.given, given):
        names = " ".join(map(_input_text, noted.given))
        raise InputError(
            f"an append to {str(folder)!r} did not end; finish it first with hbpack append {folder} {names}"
        )
    return noted


def _same(sources: Sequence[Source], others: Sequence[Source]) -> bool:
    """Whether two lists name the same inputs, with the same weights, however they are spelled."""
    first, second = (
        [(source.share, *real_paths([source.path.rstrip("/") or "/"])) for source in each]
        for each in (sources, others)
    )
    return first == second


def _input_text(source: Source) -> str:
    """Write an input as `parse_input` reads it."""
    share = source.share
    return source.path if share == 1 else f"{source.path}@{str(share).removesuffix('.0')}"


def _write_options(folder: Path) -> WriteOptions:
    """Return the options that the set was written with; raise FormatError if the set is unfinished."""
    manifest = read_manifest(set_at(folder))
    if manifest.history:
        warn(
            f"the set was rebalanced to {counted(manifest.num_gpus, 'GPU')}; the new plan is for as many as the first "
            "one was, so run hbpack rebalance again"
        )
    return manifest.config.write


_IDENTITY = attrgetter("fingerprint", "chat_template_fingerprint")


def _tokenize_config(index: StoreIndex, sources: Sequence[Source], given: AppendConfig) -> TokenizeConfig:
    """Return the options for these inputs; raise TokenizerError if the tokenizer is not the set's."""
    limits = given.model_dump(include={"exclude", "recheck", "max_rejected", "strict"})
    values = {**asdict(index.options), **limits, "tokenizer": given.tokenizer or index.tokenizer.name}
    config = validate(TokenizeConfig, {**values, "inputs": [*map(_input_text, sources)]})
    found = LoadedTokenizer(config.tokenizer, config.chat_template, config.eos_token).describe()
    if _IDENTITY(found) != _IDENTITY(index.tokenizer):
        raise TokenizerError(
            f"{config.tokenizer} is not the tokenizer that the set was made with, or has changed since; name that one "
            "with --tokenizer, or run hbpack pack with all inputs"
        )
    return config


REMEDY = (
    "hbpack append only adds to what the set has: put the input back as it was, say where it is now with "
    "--moved OLD=NEW, or run hbpack pack with all inputs"
)
GONE_REMEDY = (
    "put it back as it was, say where it is now with --moved OLD=NEW, keep its tokens with --gone keep, or take them "
    "out of the set with --gone drop"
)
_Key = tuple[int, str]
"""A file: the number of its input, and its path behind that of the input."""
_Slices = dict[_Key, list[tuple[int, PartFile]]]
"""The slices of each file that the store has, with the numbers of their parts."""


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


class _Known(NamedTuple):
    """The files of a set's inputs."""

    sources: list[Source]
    """The inputs that stay."""
    files: list[CorpusFile]
    """Their files, and parts of the store that stay as they are (`CorpusFile.is_part`), in the order of the store."""
    late: list[str]
    """Each file that came late, as an input."""
    was: dict[tuple[int, str], PartFile]
    """The files as they were packed, by their inputs and paths of today."""
    held: dict[tuple[int, str], str]
    """Contents of those in parts that stay."""


def _find_known(
    index: StoreIndex, sources: list[Source], folder: Path, engine: Engine, new: Sequence[CorpusFile], gone: str | None
) -> _Known:
    """Find the files of a set's inputs, and say which are gone.

    Args:
        sources: the inputs, maybe moved.
        new: files of new inputs, which did not come late.

    Raises:
        InputError: a file is gone, and `gone` is None.
    """
    slices: _Slices = {}
    for at, part in enumerate(index.parts):
        for each in part.files:
            key = each.source, _below(index.sources[each.source].name, each.path)
            slices.setdefault(key, []).append((at, each))
    listed = [(source, file) for number, source in enumerate(sources) for file in _find(source, number, folder)]
    found = {(file.source_id, _below(source.name, source.shown(file.path))): file for source, file in listed}
    late = _find_late(found, slices, sources, new, engine)
    lost = [key for key in slices if key not in found]
    names = _some([slices[key][0][1].path for key in lost])
    if lost and gone is None:
        raise InputError(f"{names}: gone since the set was packed; {GONE_REMEDY}")
    if lost:
        say(f"gone, and {'kept in' if gone == 'keep' else 'dropped from'} the set: {names}")
    if late:
        say(f"came late, and taken as new inputs: {_some(late)}")
    kept = {at for key in lost for at, _ in slices[key]} if gone == "keep" else set()
    dropped = {key[0] for key in lost} - {key[0] for key in slices if kept or key in found}
    stay = [old for old in range(len(sources)) if old not in dropped]
    number = {old: i for i, old in enumerate(stay)}
    known = _Known([sources[old] for old in stay], [], late, {}, {})
    for key, of in slices.items():
        for at in (at for at, each in of if at in kept and index.parts[at].files[0] is each):
            content, size = index.parts[at].fingerprint, GROUP_BYTES + 1  # It shares no part with others.
            known.files.append(CorpusFile(number[key[0]], f"{at}", "jsonl", "none", size, content, is_part=True))
        old, is_kept = of[0][1], of[0][0] in kept
        if key in found or is_kept:
            place = number[key[0]], found[key].path if key in found else old.path
            known.was[place] = old
            if is_kept:
                known.held[place] = content_of(found[key]) if key in found else old.fingerprint
            else:
                known.files.append(found[key]._replace(source_id=place[0]))
    return known


def _find_late(
    found: dict[_Key, CorpusFile],
    slices: _Slices,
    sources: Sequence[Source],
    new: Sequence[CorpusFile],
    engine: Engine,
) -> list[str]:
    """Find the files that came late, as inputs; one that was renamed takes its old place in `found` instead."""
    real = dict(zip(found, real_paths([file.path for file in found.values()]), strict=True))
    taken = {real[key] for key in found if key in slices} | {*real_paths([file.path for file in new])}
    late = {key: file for key, file in found.items() if key not in slices and real[key] not in taken}
    for key, ((_, old), *_) in slices.items():
        near = [] if key in found else [at for at in late if (at[0], late[at].num_bytes) == (key[0], old.num_bytes)]
        if renamed := next((at for at in near if content_of(late[at]) == old.fingerprint), None):
            found[key] = late.pop(renamed)
    tables = [key for key, file in late.items() if file.format not in ("jsonl", "json", "text")]
    cut = engine.run(partial(cut_file, slice_bytes=None), [late[key] for key in tables], is_risky=True)
    empty = {tables[i] for i, outcome in cut if outcome == []}  # The store has nothing of them.
    late = {key: file for key, file in late.items() if key not in empty}
    for key, file in late.items():
        if not isinstance(sources[key[0]].share, float):
            name = f"{file.path}: came late to {sources[key[0]].name}, which has a number or share of tokens"
            raise ConfigError(f"{name}; name it as an input with a weight of its own")
    return [_input_text(replace(sources[key[0]], name=file.path, folder="")) for key, file in late.items()]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8:,} more" if len(names) > 8 else "")


def _below(name: str, path: str) -> str:
    """Return a file's path behind that of its input, which is the same after the input has moved."""
    root = os.path.dirname(name[1:]) if name.startswith(MARK) else re.split(r"[*?\[]", name)[0]
    return path.removeprefix(root)


def _find(source: Source, number: int, folder: Path) -> list[CorpusFile]:
    """Find the files of an input; none if it is gone."""
    if source.folder and not source.name.startswith(MARK) and not os.path.lexists(source.path):
        # Otherwise its name may be that of a data set of the Hub.
        source = replace(source, name=os.path.join(source.folder, source.name), folder="")
    try:
        return find_files(source, number, output=str(folder))
    except GoneError:
        return []
    except InputError as error:
        raise InputError(f"{error}; {REMEDY}") from None


def _require_known(cuts: Iterable[Cut], known: _Known, num_own: int) -> None:
    """Raise InputError if a file of the set has changed, or a new input repeats one.

    Args:
        cuts: the cuts of all inputs.
        num_own: inputs of the set, and those that came late.
    """
    read = [slice_.file for cut in cuts for slice_ in cut.slices if not slice_.file.is_part]
    now = known.held | {(file.source_id, file.path): file.fingerprint for file in read}
    for (number, path), old in known.was.items():
        if now.get((number, path)) != old.fingerprint:
            name = path if known.sources[number].shown(path) == old.path else f"{path} (instead of {old.path})"
            raise InputError(f"{name}: has changed since it was packed; {REMEDY}")
    names = {old.fingerprint: old.path for old in known.was.values()}
    for file in read:
        if file.source_id >= num_own and file.fingerprint in names:
            other = "" if names[file.fingerprint] == file.path else f", as {names[file.fingerprint]}"
            raise InputError(f"{file.path} is in the set already{other}; leave it out")
