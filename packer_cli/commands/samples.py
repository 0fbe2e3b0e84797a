"""The kind of data at a path that the user named, and its samples: a set, a store, a lengths file or a corpus.

Every command uses this module to look at a path, and says in its own words what it needs.
"""

from __future__ import annotations

import codecs
import re
import tempfile
from pathlib import Path
from typing import Any, Literal, NamedTuple
from zipfile import BadZipFile

import numpy as np

from packer_cli.commands.arguments import Inputs, Lengths, is_paths, one_path, path_names
from packer_cli.commands.engines import make_engine
from packer_cli.commands.output_folder import config_of_plan, require_tokens
from packer_cli.config import TokenizeConfig
from packer_cli.corpus.data_files import COMPRESSIONS, FORMATS
from packer_cli.errors import ConfigError, InputError, TooManyRejectedError
from packer_cli.format.constants import MANIFEST_NAME, PLAN_NAME
from packer_cli.format.versions import plan_file, set_at
from packer_cli.plan.core.cut import Samples
from packer_cli.plan.core.types import Int32Array
from packer_cli.remote.local import local_file
from packer_cli.remote.path import as_path
from packer_cli.tokens.index import INDEX_NAME, TOKENS
from packer_cli.tokens.samples import StoreSamples
from packer_cli.tokens.store import open_store

NAME_SAMPLES = "name a packed data set, a token store or a file of lengths"


class Found(NamedTuple):
    """The data at a path. A folder may hold a plan and a token store."""

    path: Path
    """The folder, where the plan or the manifest in it is named."""
    kind: Literal["given", "nothing", "folder", "corpus", "lengths"]
    """The kind by a file's name: text may be lengths, and so may an array (.npy); or lengths in place of a path."""
    has_plan: bool = False
    store: Path | None = None
    """The token store: the folder itself, or a folder in it."""
    samples: Samples | None = None
    """Samples of the lengths that were given in place of a path."""


def find(inputs: Lengths, function: str) -> Found:
    """Find what a function was given: lengths, or the data at one path."""
    if is_paths(inputs):
        return look_at(one_path(inputs, function))
    return Found(Path(), "given", samples=samples_of(inputs))


def look_at(path: Path) -> Found:
    """Find the kind of data at a path, without opening it. Price: a few requests, for remote storage."""
    if path.name in (PLAN_NAME, MANIFEST_NAME) and path.is_file():
        path = path.parent
    if not path.exists():
        path = set_at(path)  # A version, or the validation set of one.
    if path.is_file():
        is_text = FORMATS.get(path.suffix, "text") == "text" and path.suffix not in COMPRESSIONS
        return Found(path, "lengths" if is_text or path.suffix == ".npy" else "corpus")
    if not path.exists():
        return Found(path, "nothing")
    store = next((folder for folder in (path, path / TOKENS) if (folder / INDEX_NAME).exists()), None)
    return Found(path, "folder", plan_file(path).exists(), store)


def require_samples(found: Found, *, takes_corpus: bool = False) -> Samples:
    """Read the samples of a file of lengths, a token store, or a packed set that keeps its tokens.

    Args:
        takes_corpus: whether the command would tokenize a corpus, with `--tokenizer`; for messages.

    Raises:
        ConfigError: the packed set is planned already, and keeps no tokens to plan again.
        InputError: the path has nothing, or a corpus, or a file without lengths.
    """
    if found.samples is not None:
        return found.samples
    path, name = found.path, repr(str(found.path))
    or_corpus = ", or a corpus and its --tokenizer" if takes_corpus else ""
    if found.kind == "nothing":
        raise InputError(f"{name} does not exist; {NAME_SAMPLES}{or_corpus}")
    if found.kind == "corpus":
        needs = ", which needs --tokenizer" if takes_corpus else "; run hbpack tokenize, and name its output"
        raise InputError(f"{name} is a corpus{needs}")
    if found.kind == "lengths":
        return Samples(lengths=read_lengths_file(path))
    if found.store is not None:
        require_tokens(found.store)
        samples, config = StoreSamples(open_store(found.store)), config_of_plan(path)
        return samples.of(config).alone() if config else samples.all
    for folder in (path, path / TOKENS):
        require_tokens(folder)
    if found.has_plan:
        remedy = NAME_SAMPLES if takes_corpus else "leave out --groups and --gpus"
        raise ConfigError(f"{name} is planned and keeps no tokens; {remedy}")
    kinds = "packed data set (hbpack.json), plan, token store, or file of lengths"
    raise InputError(f"{name} is not a {kinds}; name one{or_corpus}")


def read_samples(inputs: Inputs, corpus: TokenizeConfig | None, workers: int | None) -> Samples:
    """Read the samples of the inputs; a corpus (`corpus` is not None) is tokenized first.

    Raises:
        ConfigError: the inputs are several or none, and no corpus; or a corpus, and have lengths already.
        InputError: the input has no lengths.
    """
    if not is_paths(inputs):
        return samples_of(inputs)
    names = path_names(inputs)
    if corpus is None:
        if len(names) != 1:
            raise ConfigError("several inputs are a corpus, which needs --tokenizer" if names else "INPUT is required")
        return require_samples(look_at(as_path(names[0])), takes_corpus=True)
    for name in names:
        path = as_path(name)
        if path.suffix == ".npy" or look_at(path).store is not None:
            raise ConfigError(f"{name!r} has its lengths already and is not a corpus; leave out --tokenizer")
    from packer_cli.commands.tokenize import CorpusStore  # Only a corpus needs it.
    from packer_cli.engine.output import make_whole

    with make_engine({"workers": workers}) as engine, tempfile.TemporaryDirectory(prefix="hbpack-tokens-") as folder:
        try:
            make_whole(CorpusStore(corpus, Path(folder)), engine)
        except TooManyRejectedError as error:
            raise TooManyRejectedError(error.what, "hbpack tokenize keeps the reasons, or allow more") from None
        return StoreSamples(open_store(Path(folder) / TOKENS)).all


_RULE = "a length is 1 .. 2147483647; correct it, or leave it out"
_CHECK = "check the file and its permissions"
_SAVE = "save one array with numpy.save, or name text with one integer a line"


def read_lengths_file(path: Path) -> Int32Array:
    """Read lengths (int32[n]) from a `.npy` of integers, or a text file with one integer per line.

    Raises:
        InputError: the file cannot be read, is empty, or holds a value outside 1 .. 2^31 - 1, the first of which is
            named.
    """
    try:
        values = np.load(local_file(path), allow_pickle=False) if path.suffix == ".npy" else _read_text(path)
    except OSError as error:
        raise InputError(f"lengths file {str(path)!r} cannot be read: {error.strerror or error}; {_CHECK}") from None
    except (ValueError, EOFError, BadZipFile) as error:
        why = "it does not begin as one, or holds objects" if "pickle" in str(error) else error  # To numpy, all do.
        raise InputError(f"lengths file {str(path)!r} is not a .npy of integers: {why}; {_SAVE}") from None
    if not isinstance(values, np.ndarray):
        raise InputError(f"lengths file {str(path)!r} is an archive of arrays (.npz); {_SAVE}")
    lengths = checked_lengths(values, f"lengths file {str(path)!r}")
    if not len(lengths):
        raise InputError(f"lengths file {str(path)!r} is empty; {_SAVE}")
    return lengths


def samples_of(lengths: Any) -> Samples:
    """Make samples of the given lengths.

    Raises:
        InputError: the lengths are not integers from 1 to 2^31 - 1.
    """
    try:
        values = np.asarray(lengths)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the lengths are not one row of integers: {' '.join(str(error).split()).rstrip('.')}; give the tokens of "
            "each sample, such as [512, 80]"
        ) from None
    if not values.size:
        values = values.astype(np.int64)  # An empty list is one of floats to numpy.
    return Samples(lengths=checked_lengths(values, "the lengths"))


def checked_lengths(values: np.ndarray, name: str) -> Int32Array:
    """Check lengths, and return a copy of them, int32[n].

    Args:
        name: for messages.

    Raises:
        InputError: the lengths are not one row of integers of 1 .. 2^31 - 1; the error names the first bad value.
    """
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise InputError(
            f"{name} must hold one row of integers, got {values.dtype} of shape {values.shape}; give the tokens of "
            "each sample, such as numpy.array([512, 80])"
        )
    wrong = np.flatnonzero((values < 1) | (values >= 2**31))
    if len(wrong):
        raise InputError(f"{name}: value {wrong[0] + 1} is {values[wrong[0]]}; {_RULE}")
    return values.astype(np.int32)


def _read_text(path: Path) -> np.ndarray:
    data = path.read_bytes()
    if data.startswith(b"PK\x03\x04"):
        raise InputError(f"lengths file {str(path)!r} is an archive of arrays (.npz); {_SAVE}")
    lines = data.removeprefix(codecs.BOM_UTF8).split()
    try:
        return np.array(lines, dtype=np.int64) if lines else np.zeros(0, dtype=np.int64)
    except (ValueError, OverflowError):
        number = next(i for i, line in enumerate(lines) if not re.fullmatch(rb"[+-]?[0-9]{1,18}", line))
        text = lines[number].decode("utf-8", "replace")[:40]
        raise InputError(
            f"lengths file {str(path)!r}: value {number + 1} is {text!r}; write one integer a line, 1 .. 2147483647"
        ) from None
