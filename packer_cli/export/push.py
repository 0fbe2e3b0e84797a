"""Packed sets and exports on the Hugging Face Hub: one commit, which replaces what an earlier push wrote.

With them goes a card: what was packed, from what, and for which GPUs.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from packer_cli.engine.local import Engine
from packer_cli.engine.progress import Progress
from packer_cli.errors import ConfigError, FormatError, HbpackError, OutputError, RemoteError
from packer_cli.export.formats import load_format
from packer_cli.export.listing import NAME, ExportListing
from packer_cli.format.checksums import inside
from packer_cli.format.constants import MANIFEST_NAME, VALIDATION
from packer_cli.format.entries import GroupInfo
from packer_cli.format.manifest import Manifest
from packer_cli.remote.path import is_remote
from packer_cli.shards.manifest import read_manifest
from packer_cli.shards.repair import find_damaged, set_files
from packer_cli.sizes import counted, format_tokens
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
            f"{str(folder)!r} was written with --index-only, and nothing reads its token store from the Hub; run "
            "hbpack write without --index-only first"
        )
    files = [
        str(PurePosixPath(name, path))
        for name in manifest.planned.sets
        for path in _intact(folder / name, engine, progress)
    ]
    return _push(options, folder, files, lambda name: card_of(manifest, None, name, options.license))


def push_export(options: PushOptions, folder: Path, manifest: Manifest, listing: ExportListing) -> str:
    """Push an export that is complete, likewise.

    Args:
        manifest: of the packed set.
        listing: what the export says of itself.
    """
    files = [NAME, *dict.fromkeys(file["path"] for file in listing["files"])]
    return _push(options, folder, files, lambda name: card_of(manifest, listing, name, options.license))


def _intact(folder: Path, engine: Engine, progress: Progress) -> list[str]:
    """Check a set's files, and return their paths, the manifest's first. Price: reading all of them once."""
    files = [*set_files(read_manifest(folder))]
    for path, why in find_damaged(folder, files, engine, progress).items():
        raise FormatError(
            f"{str(folder / path)!r}: {why}; hbpack verify {shlex.quote(str(folder))} says how to repair it"
        )
    return [MANIFEST_NAME, *(file.path for file in files)]


def _push(options: PushOptions, folder: Path, files: list[str], card: Callable[[str], str]) -> str:
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
        added.append(CommitOperationAdd(CARD, card(name).encode()))
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
        why = " ".join(str(error).split()) or type(error).__name__
        raise RemoteError(
            f"{name} could not be pushed to the Hub ({why}); check the name, the network and hf auth whoami, then run "
            "again"
        ) from None


TRAIN = """\
```python
from packer_cli.loader.adapters.transformers import packed

trainer = packed(Trainer)(model, args, train_dataset="hf://datasets/{name}")
```

For other trainers, `packer_cli.loader.PackedDataset("hf://datasets/{name}", rank, {gpus})` reads it on {gpus_text}.
Name a revision, `hf://datasets/{name}@REVISION`, so that a run does not read a set that was pushed later."""

TRAIN_ON_TREES = """\
Its rows hold preference pairs or samples that share prefixes.
`packer_cli.loader.PackedDataset("hf://datasets/{name}", rank, {gpus}, format="tree")` reads it on {gpus_text}. Name a
revision, `hf://datasets/{name}@REVISION`, so that a run does not read a set that was pushed later."""

LOAD = """\
```python
from datasets import load_dataset

dataset = load_dataset("{name}", split="train")
```

The rows are packs in the format of `{format}`, {order}. {rule}"""

DOWNLOAD = """\
```bash
hf download {name} --repo-type dataset --local-dir DIR
```

DIR then holds packs in the format of `{format}`, {order}."""

START = "{download} Train with:\n\n```bash\n{usage}\n```"

ORDERS = {
    "use": ("in the order in which the plan uses them", "Do not shuffle them, and do not pack them again."),
    "packs": ("in the order of the shards", "Do not pack them again."),
}


def card_of(manifest: Manifest, listing: ExportListing | None, name: str, license: str | None) -> str:
    """Write `README.md` of a packed set, or of an export of one: YAML for the Hub, and Markdown.

    Args:
        listing: what the export says of itself.
        name: of the data set on the Hub.
        license: None where the user named none.
    """
    what, groups, data_files = f"Packed by hbpack {manifest.hbpack_version}", manifest.groups, None
    if listing is None:
        train = TRAIN_ON_TREES if manifest.has_trees else TRAIN
        how = train.format(name=name, gpus=manifest.num_gpus, gpus_text=counted(manifest.num_gpus, "GPU"))
        counts = [
            sum(each) for each in zip(*((g.num_samples, g.num_tokens, g.num_packs) for g in groups), strict=True)
        ]
    else:
        what += f", and exported to `{listing['format']}`"
        groups = tuple(group for group in groups if group.name in listing["groups"])
        data_files, how = _loading(listing, name)
        counts = [listing["num_samples"], listing["num_tokens"], listing["num_rows"]]
    facts = [(kind, f"{count:,}") for kind, count in zip(("samples", "tokens", "packs"), counts, strict=True)]
    facts += _facts(manifest, groups)
    if listing is not None and listing.get("loss_weights") is False:
        facts.append(("loss weights", "left out: every loss token counts 1"))
    lines = ["---", *_metadata(license, data_files), "---", "", f"# {name}", "", f"{what}.", "", *how.split("\n"), ""]
    lines += [*_table(("", ""), facts), "", "## Sources", ""]
    lines += _table(("source", "weight"), [(source.name, f"{source.weight:g}") for source in manifest.sources])
    if license is None:
        lines += ["", "No licence was named: those of the sources hold."]
    return "\n".join(lines) + "\n"


def _loading(listing: ExportListing, name: str) -> tuple[str | None, str]:
    """Return the files of an export that `load_dataset` takes, None if none; and how to load it, in Markdown."""
    format = load_format(listing["format"])
    order, rule = ORDERS[listing["order"]]
    places = {"name": name, "format": listing["format"], "order": order, "rule": rule}
    if format.hub_files:
        return format.hub_files, LOAD.format(**places)
    how, usage = DOWNLOAD.format(**places), format.usage_of("DIR", listing)
    return None, START.format(download=how, usage=usage) if usage else how


def _metadata(license: str | None, data_files: str | None) -> Iterator[str]:
    if license is not None:
        yield f'license: "{license}"'
    yield "tags: [hbpack]"
    if data_files is None:
        yield "viewer: false"
    else:
        yield from ("configs:", "- config_name: default", f'  data_files: "{data_files}"')


def _table(header: tuple[str, str], rows: Iterable[tuple[str, str]]) -> list[str]:
    cells = [tuple(cell.replace("\\", "\\\\").replace("|", "\\|") for cell in row) for row in rows]
    return [f"| {header[0]} | {header[1]} |", "|---|---|", *(f"| {first} | {second} |" for first, second in cells)]


def _facts(manifest: Manifest, groups: Sequence[GroupInfo]) -> Iterator[tuple[str, str]]:
    plan, overall = manifest.planned, manifest.metrics.overall
    yield "groups, CAPACITY:SP_DEGREE", ", ".join(f"{format_tokens(g.capacity)}:{g.sp_size}" for g in groups)
    yield "planned for", counted(manifest.num_gpus, "GPU")
    yield "recipe", f"strategy {plan.strategy}, packing {plan.packing}, overflow {plan.overflow}"
    if plan.global_tokens:
        yield "tokens of an optimizer step", f"{plan.global_tokens:,}"
    yield "loss on", manifest.config.tokens.loss_on
    yield "seed", str(manifest.seed)
    whole = "" if len(groups) == len(manifest.groups) else " of the whole set"
    yield f"padding ratio (PR){whole}", f"{overall.pr:.4f}"
    yield f"attention balance ratio (ABR){whole}", f"{overall.abr:.4f}"
    tokenizer = manifest.tokenizer
    yield "tokenizer", f"{_without_folders(tokenizer.name or '-')}, fingerprint `{tokenizer.fingerprint}`"
    if tokenizer.chat_template_fingerprint:
        yield "chat template", f"fingerprint `{tokenizer.chat_template_fingerprint}`"
    yield "fingerprint of the set", f"`{manifest.fingerprint}`"


def _without_folders(name: str) -> str:
    """Return a name on the Hub as it is; of a path, the end: the folders of a machine are nobody else's business."""
    return Path(name).name if Path(name).is_absolute() else name
