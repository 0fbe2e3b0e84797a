"""Packed sets and exports on the Hugging Face Hub: one commit, which replaces what an earlier push wrote.

With them goes a card: what was packed, from what, and for which GPUs.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from packer_cli.engine.local import Engine
from packer_cli.engine.progress import Progress
from packer_cli.errors import ConfigError, FormatError, HbpackError, OutputError, RemoteError, UnreachableError
from packer_cli.export.formats import load_format
from packer_cli.export.listing import NAME, ExportListing
from packer_cli.export.options import spelled
from packer_cli.format.checksums import inside
from packer_cli.format.constants import MANIFEST_NAME, VALIDATION
from packer_cli.format.manifest import Manifest
from packer_cli.format.versions import plan_base
from packer_cli.remote.path import is_remote
from packer_cli.shards.manifest import read_manifest
from packer_cli.shards.repair import find_damaged, set_files
from packer_cli.sizes import counted
from packer_cli.version import __version__

if TYPE_CHECKING:
    from huggingface_hub import HfApi

CARD = "README.md"
_NOT_OURS = {".gitattributes", CARD}
"""Files that the Hub makes by itself, or a user by hand; neither is a reason to refuse a repository."""
_LICENSE = re.compile(r"[a-z][a-z0-9.+-]*")


@dataclass(frozen=True, kw_only=True)
class PushOptions:
    """Place of a set on the Hub, and facts for its card."""

    name: str
    """`USER/NAME`, or `NAME` for the user who is logged in."""
    private: bool = False
    license: str | None = None
    """Licence as the Hub names it."""


def check_push(options: PushOptions, folder: Path) -> None:
    """Raise what a push would, before there is anything to push.

    Args:
        folder: that will be pushed.

    Raises:
        ConfigError: the name or the licence is not one, or the folder is a URL.
        RemoteError: the Hub does not answer, or does not know the user.
    """
    if is_remote(folder):
        raise ConfigError(f"--push-to-hub takes a local folder, and {str(folder)!r} is a URL; copy it first")
    if options.license is not None and not _LICENSE.fullmatch(options.license):
        raise ConfigError(f"--license: {options.license!r} is not a licence of the Hub, such as apache-2.0 or other")
    with _hub_errors(options.name):
        from huggingface_hub import HfApi
        from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

        validate_repo_id(options.name)
        HfApi().whoami()


def push_set(options: PushOptions, folder: Path, engine: Engine, progress: Progress) -> str:
    """Push a packed set, with its validation set. Returns the name of the data set, with its user.

    Raises:
        InputError, FormatError: there is no packed set, or it is damaged.
        ConfigError: its shards leave their tokens in the token store.
        OutputError, RemoteError: see `_push`.
    """
    manifest = read_manifest(folder)
    if manifest.tokens:
        raise ConfigError(
            f"{str(plan_base(folder))!r} was written with --index-only, and nothing reads its token store from the "
            "Hub; run hbpack write without --index-only first"
        )
    files = [
        str(PurePosixPath(name, path))
        for name in manifest.planned.sets
        for path in _intact(folder / name, engine, progress)
    ]
    return _push(options, folder, files, manifest, None)


def push_export(options: PushOptions, folder: Path, manifest: Manifest, listing: ExportListing) -> str:
    """Push an export that is complete, likewise.

    Args:
        manifest: of the packed set.
        listing: what the export says of itself.
    """
    files = [NAME, *dict.fromkeys(file["path"] for file in listing["files"])]
    return _push(options, folder, files, manifest, listing)


def _intact(folder: Path, engine: Engine, progress: Progress) -> list[str]:
    """Check a set's files, and return their paths, the manifest's first. Price: reading all of them once."""
    files = [*set_files(folder, read_manifest(folder))]
    for path, why in find_damaged(folder, files, engine, progress).items():
        raise FormatError(
            f"{str(folder / path)!r}: {why}; hbpack verify {shlex.quote(str(plan_base(folder)))} says how to repair it"
        )
    return [MANIFEST_NAME, *(file.path for file in files)]


def _push(
    options: PushOptions, folder: Path, files: list[str], manifest: Manifest, listing: ExportListing | None
) -> str:
    """Commit files, of which the first describes the whole, and remove what an earlier push wrote besides.

    Raises:
        OutputError: the data set on the Hub holds something else, or is public where it should be private.
        RemoteError: the Hub does not answer, or refuses.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    api = HfApi()
    with _hub_errors(options.name):
        name = api.create_repo(
            options.name, private=options.private or None, exist_ok=True, repo_type="dataset"
        ).repo_id
        before = api.dataset_info(name)
        if options.private and not before.private:
            raise OutputError(f"--private: the data set {name} on the Hub is public; make it private there first")
        there = {sibling.rfilename for sibling in before.siblings or []}
        if there - _NOT_OURS and files[0] not in there:
            raise OutputError(f"--push-to-hub: the data set {name} on the Hub holds other files; give another name")
        stale = _written_before(api, name, there, files[0]) - set(files)
        added = [CommitOperationAdd(path, str(inside(folder, path))) for path in files]
        added.append(CommitOperationAdd(CARD, card_of(manifest, listing, name, options.license).encode()))
        removed = [CommitOperationDelete(path) for path in sorted(stale)]
        message = f"Pushed by hbpack {__version__}"
        api.create_commit(
            name, [*added, *removed], commit_message=message, repo_type="dataset", parent_commit=before.sha
        )
    return name


def _written_before(api: HfApi, name: str, there: set[str], main: str) -> set[str]:
    """Find the files of a data set that an earlier push wrote, by the file that describes them."""
    written = set()
    for listing in {main, f"{VALIDATION}/{main}"} & there:
        text = Path(api.hf_hub_download(name, listing, repo_type="dataset")).read_bytes()
        written |= {listing, *(listing.removesuffix(main) + path for path in _paths_in(text))}
    return {file for file in there if not written.isdisjoint([file, *map(str, PurePosixPath(file).parents)])}


def _paths_in(text: bytes) -> list[str]:
    """Return the values of all keys `path` in JSON: files, or folders of ranks."""
    paths: list[str] = []

    def note(value: dict[str, object]) -> None:
        if isinstance(path := value.get("path"), str):
            paths.append(path)

    json.loads(text, object_hook=note)
    return paths


@contextmanager
def _hub_errors(name: str) -> Iterator[None]:
    """Raise what the client raises as an error of hbpack."""
    from huggingface_hub.errors import HFValidationError, LocalTokenNotFoundError

    try:
        yield
    except HbpackError:
        raise
    except HFValidationError as error:
        raise ConfigError(f"--push-to-hub: {name!r} is not a name of the Hub: {error}") from None
    except LocalTokenNotFoundError:
        raise RemoteError("the Hub needs to know who you are; run hf auth login, or set HF_TOKEN") from None
    except Exception as error:  # Of the client's HTTP library, which its releases change.
        answer = getattr(getattr(error, "response", None), "status_code", 503)
        kind = UnreachableError if answer >= 500 else RemoteError
        why = " ".join(str(error).split()) or type(error).__name__
        raise kind(
            f"{name} could not be pushed to the Hub ({why}); check the name, the network and hf auth whoami, then run "
            "again"
        ) from None


def card_of(manifest: Manifest, listing: ExportListing | None, name: str, license: str | None) -> str:
    """Write `README.md` of a packed set, or of an export of one: YAML for the Hub, and Markdown.

    Args:
        listing: what the export says of itself.
        name: of the data set on the Hub.
        license: None where the user named none.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {
        "counted": counted,
        "number": "{:,}".format,
        "spelled": spelled,
        "without_folders": _without_folders,
        "cell": lambda text: text.replace("\\", "\\\\").replace("|", "\\|"),
    }
    format = load_format(listing["format"]) if listing else None
    template = resources.files(__package__).joinpath("card.md").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        name=name,
        license=license,
        manifest=manifest,
        listing=listing,
        groups=[group for group in manifest.groups if listing is None or group.name in listing["groups"]],
        hub_files=format.hub_files if format else None,
        usage=format.usage_of("DIR", listing) if format and listing else None,
    )


def _without_folders(name: str) -> str:
    """Return a name on the Hub as it is; of a path, the end: the folders of a machine are nobody else's business."""
    return Path(name).name if Path(name).is_absolute() else name
