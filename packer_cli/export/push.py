"""Packed sets and exports on the Hugging Face Hub: one commit, which replaces what an earlier push wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packer_cli.errors import ConfigError, HbpackError, OutputError, RemoteError
from packer_cli.export.card import dataset_card
from packer_cli.export.formats import load_format
from packer_cli.export.options import NAME, read_json
from packer_cli.format.checksums import inside
from packer_cli.format.constants import MANIFEST_NAME, VALIDATION
from packer_cli.format.manifest import Manifest
from packer_cli.remote.path import is_remote
from packer_cli.shards.manifest import read_manifest
from packer_cli.shards.repair import set_files
from packer_cli.version import __version__

CARD = "README.md"
_NOT_OURS = {".gitattributes", CARD}
"""What the Hub makes by itself, or a user by hand; neither is a reason to refuse a repository."""


@dataclass(frozen=True, kw_only=True)
class PushOptions:
    """Where a set goes on the Hub, and what its card says."""

    name: str
    """`USER/NAME`, or `NAME` for the user who is logged in."""
    private: bool = False
    license: str | None = None
    """SPDX identifier."""


def push_set(options: PushOptions, folder: Path) -> str:
    """Push a packed set, with its validation set. Returns the name of the data set, with its user.

    Raises:
        InputError, FormatError: there is no packed set.
        OutputError, RemoteError: see `_push`.
    """
    manifest = read_manifest(folder)
    files = [*_paths_of_set(folder, manifest)]
    return _push(options, folder, files, lambda name: dataset_card(manifest, name, license=options.license))


def push_export(options: PushOptions, folder: Path, source: Path) -> str:
    """Push an export that is complete, likewise.

    Args:
        source: the folder of the packed set.
    """
    manifest = read_manifest(source)
    listing = read_json(folder / NAME) or {}
    files = [NAME, *dict.fromkeys(file["path"] for file in listing["files"])]
    format = listing["format"]

    def card(name: str) -> str:
        data_files = load_format(format).hub_files
        return dataset_card(manifest, name, license=options.license, format=format, data_files=data_files)

    return _push(options, folder, files, card)


def _paths_of_set(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Relative paths of what loaders and `hbpack verify` read."""
    yield MANIFEST_NAME
    yield from (file.path for file in set_files(manifest))
    yield from (part.path for part in manifest.tokens)
    if manifest.sets_aside:
        own = folder / VALIDATION
        yield from (f"{VALIDATION}/{path}" for path in _paths_of_set(own, read_manifest(own)))


def _push(options: PushOptions, folder: Path, files: list[str], card: Callable[[str], str]) -> str:
    """Commit files, of which the first describes the whole, and remove what an earlier push wrote besides.

    Raises:
        OutputError: the data set on the Hub holds something else.
        ConfigError: its name is not one.
        RemoteError: the Hub does not answer, or refuses.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub.errors import HFValidationError, LocalTokenNotFoundError

    if is_remote(folder):
        raise ConfigError(f"--push-to-hub takes a local folder, and {str(folder)!r} is a URL; copy it first")
    api = HfApi()
    try:
        name = api.create_repo(
            options.name, private=options.private or None, exist_ok=True, repo_type="dataset"
        ).repo_id
        there = set(api.list_repo_files(name, repo_type="dataset"))
        if there - _NOT_OURS and files[0] not in there:
            raise OutputError(f"--push-to-hub: the data set {name} on the Hub holds other files; give another name")
        added = [CommitOperationAdd(path, str(inside(folder, path))) for path in files]
        added.append(CommitOperationAdd(CARD, card(name).encode()))
        removed = [CommitOperationDelete(path) for path in sorted(there - _NOT_OURS - set(files))]
        message = f"Pushed by hbpack {__version__}"
        api.create_commit(name, [*added, *removed], commit_message=message, repo_type="dataset")
    except HFValidationError as error:
        raise ConfigError(f"--push-to-hub: {options.name!r} is not a name of the Hub: {error}") from None
    except LocalTokenNotFoundError:
        raise RemoteError("the Hub needs to know who you are; run hf auth login, or set HF_TOKEN") from None
    except HbpackError:
        raise
    except Exception as error:  # Of the client's HTTP library, which its releases change.
        why = next(iter(str(error).splitlines()), type(error).__name__)
        raise RemoteError(
            f"{options.name} could not be pushed to the Hub ({why}); check the name, the network and hf auth whoami, "
            "then run again"
        ) from None
    return name
