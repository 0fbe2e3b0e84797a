"""The token store that a plan was made from, as it was then."""

from __future__ import annotations

from pathlib import Path

from packer_cli.errors import FormatError
from packer_cli.files import intact_or_none
from packer_cli.format.constants import STORE_COPY
from packer_cli.format.versions import is_in_version, plan_base
from packer_cli.remote.path import path_from
from packer_cli.shards.plan_file import PlanHeader
from packer_cli.tokens.index import StoreIndex, read_index
from packer_cli.tokens.store import TokenStore, open_store


def store_of(folder: Path, header: PlanHeader) -> Path:
    """Return the token store of the plan in a folder, which may be a version's."""
    return path_from(plan_base(folder), header.store)


def has_copy(folder: Path, fingerprint: str | None) -> bool:
    """Whether a version's copy of the index of its token store, which has this fingerprint, is intact."""
    copy = intact_or_none(read_index, folder, STORE_COPY)
    return copy is not None and copy.fingerprint == fingerprint


def own_index(folder: Path, header: PlanHeader) -> StoreIndex:
    """Read the index of the token store of the plan in a folder; a version keeps the one that it was made from.

    Raises:
        InputError, FormatError: the store is gone, damaged, or another one by now.
    """
    store = store_of(folder, header)
    index = read_index(store)
    if index.fingerprint != header.store_fingerprint and is_in_version(folder):
        index = intact_or_none(read_index, folder, STORE_COPY) or index
    if index.fingerprint != header.store_fingerprint:
        raise FormatError(f"the token store {str(store)!r} has changed since the plan was made; run hbpack plan again")
    return index


def open_own_store(folder: Path, header: PlanHeader) -> TokenStore:
    """Open the token store of the plan in a folder; the errors are those of `own_index`."""
    return open_store(store_of(folder, header), own_index(folder, header))
