"""`hbpack.json` in a folder."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from packer_cli.errors import FormatError, InputError
from packer_cli.files import atomic_file
from packer_cli.format.checksums import require_damage
from packer_cli.format.constants import MANIFEST_NAME, PACKS_PER_BATCH
from packer_cli.format.manifest import Manifest, manifest_bytes, parse_manifest
from packer_cli.format.schema import shard_path
from packer_cli.plan.core.types import Int64Array, Plan
from packer_cli.remote.path import is_remote

REMEDY = "run hbpack write, which rewrites it"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `hbpack.json` atomically, with its checksum."""
    with atomic_file(folder / MANIFEST_NAME) as file:
        file.write(manifest_bytes(manifest))


def read_manifest(folder: Path) -> Manifest:
    """Read and check `hbpack.json`.

    Raises:
        InputError: the folder holds no finished packed data set.
        FormatError: the manifest is damaged, or of another version.
    """
    file = folder / MANIFEST_NAME
    try:
        data = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        remedy = "check the address" if is_remote(folder) else "run hbpack pack"
        raise InputError(f"{str(folder)!r} holds no packed data set (no {MANIFEST_NAME}); {remedy}") from None
    except OSError as error:
        require_damage(error)
        raise FormatError(f"{str(file)!r} cannot be read ({error.strerror}); {REMEDY}") from None
    return parse_manifest(data, str(file), REMEDY)


_BYTES_PER_PIECE = 36
"""With two loss spans: a document has one, a chat one for each answer."""
_BYTES_PER_PACK = 64


@dataclass(frozen=True, kw_only=True)
class ShardRange:
    """The packs of one shard: a range of pack ids of one group."""

    path: str
    group: int
    number: int
    """Index of the shard in its group."""
    first_pack: int
    num_packs: int


def lay_out(plan: Plan, pack_tokens: Int64Array, shard_size: int, token_bytes: int) -> list[ShardRange]:
    """Cut each group's packs into shards of about `shard_size` bytes, at borders of record batches.

    Args:
        pack_tokens: int64[p].
        token_bytes: of a token id.
    """
    num_pieces = np.diff(plan.packs.offsets)
    num_bytes = pack_tokens * token_bytes + num_pieces * _BYTES_PER_PIECE + _BYTES_PER_PACK
    shards = []
    for g, group in enumerate(plan.groups):
        first, stop = np.searchsorted(plan.packs.group, [g, g + 1]).tolist()
        for number, (begin, end) in enumerate(_cuts(num_bytes[first:stop], shard_size)):
            shards.append(
                ShardRange(
                    path=shard_path(group.name(g), number),
                    group=g,
                    number=number,
                    first_pack=first + begin,
                    num_packs=end - begin,
                )
            )
    return shards


def _cuts(num_bytes: Int64Array, shard_size: int) -> list[tuple[int, int]]:
    """Ranges of packs. As many even shards as the size asks for, so that none is a small remainder."""
    if not len(num_bytes):
        return []
    num_shards = max(1, round(int(num_bytes.sum()) / shard_size))
    cumulated = np.cumsum(num_bytes)
    targets = cumulated[-1] * np.arange(1, num_shards) // num_shards
    places = np.searchsorted(cumulated, targets)
    places = -(-places // PACKS_PER_BATCH) * PACKS_PER_BATCH
    borders = [0, *sorted({place for place in places.tolist() if 0 < place < len(num_bytes)}), len(num_bytes)]
    return list(itertools.pairwise(borders))
