"""Files that cannot be written: the error names the file that was meant, whatever becomes of the temporary one."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from packer_cli.files import atomic_file


@pytest.mark.parametrize("fails", ["write", "replace"])
@pytest.mark.parametrize("can_remove", [True, False])
def test_an_error_names_the_file_that_was_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str, can_remove: bool
) -> None:
    path = tmp_path / "tokens.json"

    def refuse(where: object, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(where))

    if not can_remove:
        monkeypatch.setattr(Path, "unlink", refuse)
    monkeypatch.setattr(*((Path, "open", refuse) if fails == "write" else (os, "replace", refuse)))
    with pytest.raises(OSError) as caught, atomic_file(path) as file:
        file.write(b"{}")
    assert (caught.value.errno, caught.value.filename, caught.value.filename2) == (errno.EROFS, str(path), None)
    assert not can_remove or not list(tmp_path.iterdir())


def test_a_temporary_file_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, atomic_file(tmp_path / "a"):
        next(tmp_path.glob(".a.*.tmp")).unlink()
    assert caught.value.filename == str(tmp_path / "a")
