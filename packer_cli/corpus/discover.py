"""From what the user names to files, and from files to slices."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, lru_cache
from heapq import heappop, heappush
from pathlib import PurePosixPath
from typing import Any

from packer_cli.corpus.blocks import Blocks, DamagedFileError, keep_copy, readable, unreadable, with_checksums
from packer_cli.corpus.data_files import by_suffix, format_of, known_formats, listed_file, named_file, shown_skipped
from packer_cli.corpus.input_list import MARK, differs, read_list
from packer_cli.corpus.input_text import parse_input
from packer_cli.corpus.readers import hf
from packer_cli.corpus.readers.registry import READERS
from packer_cli.corpus.types import CorpusFile, CorpusSlice, Source
from packer_cli.corpus.unchanged import (
    AT_ONCE,
    hold,
    is_pinned,
    is_small,
    require_unchanged,
    restamped,
    stamp_of,
    stamp_of_object,
    stamp_of_stat,
)
from packer_cli.errors import GoneError, InputError
from packer_cli.format.constants import MANIFEST_NAME
from packer_cli.format.tokens import SkippedFiles
from packer_cli.remote.path import as_path
from packer_cli.remote.system import is_url
from packer_cli.sizes import format_bytes

PACKED = (MANIFEST_NAME, "tokens/tokens.json", "tokens/.parts")
"""A folder that holds one of these is what hbpack wrote, to an end or not, and no data."""


def discover(
    inputs: Sequence[str], *, output: str | None = None, allow_skipped: bool = True
) -> tuple[list[Source], list[CorpusFile]]:
    """Find the files of every input, in the order given; folders and globs sorted by path.

    Nothing in the folder `output` is an input, and folders and globs pass over packed data sets.

    An input is a file, a folder, a glob, a list of files (`@FILE`), a `save_to_disk` folder or the name of a Hugging
    Face data set, each with an optional @WEIGHT. In folders and globs a file counts once, and hidden files, empty
    files, text files like README.md and files of tokenizers are passed over; `Source.skipped` has the others that are
    not read, of unknown suffixes. A file that is named is always read.

    Args:
        allow_skipped: even of an input that has more bytes that are not read than are.

    Price: a stat a file and a few bytes of each `.json`; naming a data set loads it.
    Raises InputError when an input does not exist, is of no known format, holds no data, or mostly what is skipped.
    """
    sources: list[Source] = []
    files: list[CorpusFile] = []
    for source_id, text in enumerate(inputs):
        name, weight = parse_input(text)
        source = Source.of(name, weight)
        skipped: list[SkippedFiles] = []
        found = find_files(source, source_id, output=output, skipped=skipped)
        source = replace(source, skipped=by_suffix(skipped))
        num_bytes = sum(file.num_bytes for file in found)
        if not allow_skipped and sum(each.num_bytes for each in skipped) > num_bytes:
            raise InputError(
                f"{name}: more of it would be skipped, {shown_skipped(source.skipped or ())}, than read "
                f"({format_bytes(num_bytes)}); name its files, or a pattern such as *.jsonl, or give --allow-skipped"
            )
        is_of_hub = found[0].format == "datasets" and hf.saved_path(found[0].path) is None
        if not (is_url(name) or os.path.isabs(name.removeprefix(MARK)) or is_of_hub):
            source = replace(source, folder=_require_utf8(os.getcwd()))
        sources.append(source)
        files.extend(found)
    return sources, files


def find_files(
    source: Source, source_id: int, *, output: str | None = None, skipped: list[SkippedFiles] | None = None
) -> list[CorpusFile]:
    """Find the files of an input; see `discover`. Files that are not read are added to `skipped`."""
    if output is not None and not is_url(output):
        output = os.path.realpath(output)
    found = _find(source.path, output, [] if skipped is None else skipped)
    files = [file._replace(source_id=source_id) for file in found]
    if not files:
        is_pattern = glob.has_magic(source.path) and not os.path.isdir(source.path)
        what = "no data file matches this pattern" if is_pattern else "no data files in this folder"
        raise GoneError(f"{source.path}: {what}; {known_formats()}")
    for file in files:
        _require_utf8(file.path)
    return files


def _require_utf8(path: str) -> str:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InputError(f"{path!a}: the name is not UTF-8; rename it") from None
    return path


def slice_corpus(files: Sequence[CorpusFile], *, slice_bytes: int | None = None) -> list[CorpusSlice]:
    """Cut files into slices, in file order, and fingerprint them in the same pass.

    `slice_bytes` defaults to a 32nd of each file within 4..128 MiB, so that the cut depends on the file
    alone. Each slice carries its file with the fingerprint.
    Price: reads every file once, at the speed of the disk (about 2 GB/s a core from the page cache); a small object
    is read by one request.
    A table that was cut short, or whose footer is damaged, is one slice of which nothing can be read.
    Raises InputError, in one line, for a file that cannot be read, and RunError for one that has changed.
    """
    slices: list[CorpusSlice] = []
    for listed in files:
        file = hold(listed) if is_small(listed) else restamped(listed)
        if is_pinned(file):
            keep_copy(file)
        if file.compression != "none":
            _check_compressed(file)
        cut = cut_file(file, slice_bytes)
        if cut and (not cut[0].file.fingerprint or (file.content is not None and not cut[0].xxh3)):
            cut = with_checksums(cut, READERS[file.format].parts(file.path))
        if file.content is None and not is_pinned(file):
            require_unchanged(file)
        if file.expected and cut and file.expected != cut[0].file.fingerprint:
            raise InputError(differs(file.path, "xxh3", file.expected, cut[0].file.fingerprint))
        slices += [each._replace(file=each.file._replace(content=None)) for each in cut]
    return slices


def cut_file(file: CorpusFile, slice_bytes: int | None) -> list[CorpusSlice]:
    """Cut a file as its reader does; of one that is damaged, one slice stands for all that is lost."""
    try:
        return READERS[file.format].cut(file, slice_bytes)
    except DamagedFileError as error:
        return [CorpusSlice.lost(file, error.reason)]


def _find(name: str, output: str | None, skipped: list[SkippedFiles]) -> list[CorpusFile]:
    if name.startswith(MARK) and not os.path.exists(name):
        return read_list(name.removeprefix(MARK))
    if is_url(name):
        return _find_remote(name, output, skipped)
    own = set() if output is None else {output}
    if output is not None and os.path.exists(name) and _is_within(name, output):
        raise InputError(f"{name}: is in the output folder; name another output")
    if _is_packed(name):
        raise InputError(f"{name}: is an output of hbpack; name the data that it was made from")
    if hf.saved_path(name) is not None:
        return [_saved(name)]
    if os.path.isdir(name):
        found = list(_in_folder(name, set(own), skipped))
        return [found[at] for at in _once([file.path for file in found])]
    if os.path.exists(ids := _indexed(name)):
        return [named_file(ids)]
    if glob.has_magic(name) and not (":" in name and hf.NAME.fullmatch(name)):  # name:train[:10%]
        found = []
        matches = sorted(_matches(name))
        for path in (matches[at] for at in _once(matches, links=False)):
            if _is_within(path, output) or any(map(_is_packed, _folders_of(path))):
                continue
            below = _below_pattern(path, name)
            if os.path.isdir(path):
                if "**" not in name:  # ** lists what is inside by itself
                    found.extend(_in_folder(path, set(own), skipped, f"{below}/"))
            else:
                found.extend(listed_file(path, skipped, below))
        return [found[at] for at in _once([file.path for file in found])]
    if _looks_like_path(name):
        raise GoneError(
            f"{name}: no such file or directory, and not a Hugging Face data set name either; check the name"
        )
    return [_saved(name)]


def _matches(pattern: str) -> Iterator[str]:
    """Yield what `glob.glob` does; but it would follow links to folders above as often as the system lets it.

    What a part behind `**` matches below a folder is the same for all paths to it, so one of them is enough.
    """
    parts = pattern.split("/")
    if "**" not in parts:
        yield from glob.glob(pattern)
        return
    at = parts.index("**")
    behind = "/".join(parts[at + 1 :]).lstrip("/") or "*"
    for root in glob.glob("/".join([*parts[:at], ""])) if at else [""]:
        for folder in _folders(root):
            yield from _matches(glob.escape(folder) + behind)


def _folders(root: str) -> Iterator[str]:
    """Yield a folder and those below, each once, by its shortest path, which ends with a slash."""
    waiting, seen = [(len(root), root)], set[str]()
    while waiting:
        _, folder = heappop(waiting)
        real = os.path.realpath(folder)
        if real not in seen:
            seen.add(real)
            yield folder
            for entry in _entries(folder or "."):
                if entry.is_dir():
                    heappush(waiting, (len(path := f"{folder}{entry.name}/"), path))


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """List what is not hidden in a folder, by name, without links that lead nowhere, or to themselves."""
    with readable(folder, OSError), os.scandir(folder) as found:
        entries = sorted((entry for entry in found if not entry.name.startswith(".")), key=lambda entry: entry.name)
    return [entry for entry in entries if not entry.is_symlink() or os.path.exists(entry.path)]


def _below_pattern(path: str, pattern: str) -> str:
    """Return a path behind the folder where a glob begins; nothing where the glob itself names what begins with _."""
    root = pattern[: re.search(r"[*?\[]", pattern).start()].rpartition("/")[0]  # type: ignore[union-attr]
    return "" if "/_" in f"/{pattern[len(root) :]}" else path[len(root) :]


def _find_remote(name: str, output: str | None, skipped: list[SkippedFiles]) -> list[CorpusFile]:
    """Find files behind a URL, by the rules for local ones.

    Price: a request per 1000 files, and per `.json`; of a pattern, also per folder.
    """
    place: Any = as_path(name)
    if output is not None and f"{place}/".startswith(f"{output}/"):
        raise InputError(f"{name}: is in the output folder; name another output")
    info = place.info_or_none()
    if info and info["type"] == "file":
        return [named_file(str(place), stamp_of_object(info))]
    pattern = None
    if info is None and glob.has_magic(name):
        root = name[: re.search(r"[*?\[]", name).start()].rpartition("/")[0]  # type: ignore[union-attr]
        place, pattern = as_path(root), name.removeprefix(f"{root}/")
    elif info is None:
        raise GoneError(f"{name}: no such file or folder; check the address")
    found = place.find_infos(pattern)
    if any(map(_is_packed_remote, [place, *place.parents])):
        raise InputError(f"{name}: is an output of hbpack; name the data that it was made from")
    if any(path.rpartition("/")[2] == "dataset_info.json" for path in found):
        raise InputError(f"{name}: holds a data set of save_to_disk; name its Arrow files, as {place}/*.arrow")
    names = {name for path in found for name in (path, *_folders_of(path))}

    @cache
    def is_packed(folder: str) -> bool:
        if pattern is None:  # All that is below was listed.
            return any(f"{folder}/{mark}" in names for mark in PACKED)
        return _is_packed_remote(place / folder)

    def is_passed_over(path: str) -> bool:
        is_hidden = any(part.startswith(".") for part in path.split("/"))
        is_own = output is not None and f"{place / path}".startswith(f"{output}/")
        return is_hidden or is_own or any(map(is_packed, _folders_of(path)))

    def look(path: str) -> tuple[list[CorpusFile], list[SkippedFiles]]:
        aside: list[SkippedFiles] = []
        below = path if pattern is None else _below_pattern(path, pattern)
        return [*listed_file(str(place / path), aside, below, stamp_of_object(found[path]))], aside

    files: list[CorpusFile] = []
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="hbpack-look") as pool:  # Some are read for their format.
        for listed, aside in pool.map(look, [path for path in found if not is_passed_over(path)]):
            files += listed
            skipped += aside
    return files


def _saved(name: str) -> CorpusFile:
    """Find a Hugging Face data set, and stamp it."""
    file = hf.find(name)
    return file._replace(stamp=stamp_of(file))


def _indexed(name: str) -> str:
    """Return the `.bin` of a Megatron data set named by its `.idx`, or, as Megatron names it, without suffix."""
    stem = name.removesuffix(".idx") if name.endswith(".idx") else name
    is_one = (stem != name or not os.path.exists(name)) and os.path.isfile(stem + ".bin")
    return stem + ".bin" if is_one and os.path.isfile(stem + ".idx") else name


def _is_packed_remote(folder: Any) -> bool:
    """Return whether a remote folder is packed, as `_is_packed` does. Price: a request, or two."""
    marks = [mark.split("/") for mark in PACKED]
    names = {path.name for path in folder.iterdir()}
    inside = {path.name for path in (folder / "tokens").iterdir()} if "tokens" in names else set()
    return any(mark[0] in names and (len(mark) == 1 or mark[1] in inside) for mark in marks)


def _is_packed(folder: str) -> bool:
    return any(os.path.exists(os.path.join(folder, name)) for name in PACKED)


def _is_within(path: str, folder: str | None) -> bool:
    real = os.path.realpath(path)
    return folder is not None and (real == folder or real.startswith(os.path.join(folder, "")))


def _folders_of(path: str) -> list[str]:
    """List the folders on the way to a file, as far as its path names them."""
    return [*map(str, PurePosixPath(path).parents)][:-1]


def _once(paths: Sequence[str], *, links: bool = True) -> list[int]:
    """Return the place of each file once, by its shortest path, in a folder or glob that holds links.

    Args:
        links: whether a link to a file is that file, and not one of its own.
    """
    shortest: dict[str, int] = {}
    for at, real in enumerate(real_paths(paths, links=links)):
        if real not in shortest or len(paths[at]) < len(paths[shortest[real]]):
            shortest[real] = at
    return sorted(shortest.values())


def real_paths(paths: Sequence[str], *, links: bool = True) -> list[str]:
    """Resolve the paths' links; URLs stay. Price: one call of the system for each path, more for each folder.

    Args:
        links: whether links to files are followed, and not only those to folders.
    """
    # Resolving each whole path would take most of the time that many small files need.
    real_folder = lru_cache(maxsize=None)(os.path.realpath)

    def resolve(path: str) -> str:
        if is_url(path):
            return path
        folder, name = os.path.split(path)
        return os.path.realpath(path) if links and os.path.islink(path) else os.path.join(real_folder(folder), name)

    return list(map(resolve, paths))


def _looks_like_path(name: str) -> bool:
    if not hf.NAME.fullmatch(name) or format_of(name) is not None:
        return True
    return "/" in name and os.path.isdir(name.split("/")[0])


def _in_folder(folder: str, seen: set[str], skipped: list[SkippedFiles], below: str = "") -> Iterator[CorpusFile]:
    """Yield the data files of a folder and those below, see `listed_file`."""
    real = os.path.realpath(folder)
    if real in seen or _is_packed(folder):  # a link back to a folder above, or not data
        return
    seen.add(real)
    if hf.is_saved(folder):
        yield _saved(folder)
        return
    for entry in _entries(folder):
        if entry.is_dir():
            yield from _in_folder(entry.path, seen, skipped, f"{below}{entry.name}/")
        elif entry.is_file():
            stamp = stamp_of_stat(entry.stat())
            yield from listed_file(entry.path, skipped, below + entry.name, stamp)


def _check_compressed(file: CorpusFile) -> None:
    """Raise InputError when a compressed file does not even begin as one."""
    with Blocks(file) as blocks:
        if not blocks.read(1) and blocks.broken and file.num_bytes:
            suffix = os.path.splitext(file.path)[1]
            raise unreadable(file.path, f"not a {suffix} file: {blocks.broken}")
