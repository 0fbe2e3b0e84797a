"""`hbpack.json` in a folder."""

from __future__ import annotations

from pathlib import Path

from packer_cli.errors import FormatError, InputError
from packer_cli.files import atomic_file
from packer_cli.format.checksums import require_damage
from packer_cli.format.constants import MANIFEST_NAME
from packer_cli.format.manifest import Manifest, manifest_bytes, parse_manifest
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
