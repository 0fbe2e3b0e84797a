"""Build the distributions: hbpack, and hbpack-loader, which has the loader alone, for GPU nodes.

Both hold the same files of the packages hbpack and packer_cli, so an environment takes one of them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parent.parent
PARTS = (
    "__init__.py",
    "errors.py",
    "format",
    "lazy.py",
    "loader",
    "plugins.py",
    "py.typed",
    "remote",
    "signals.py",
    "version.py",
)
"""Files and folders of packer_cli that the loader needs."""
NEEDS = ("numpy", "pyarrow", "torch", "xxhash")
NEEDS_OF_URLS = ("fsspec", "s3fs")


def copy_loader(folder: Path) -> None:
    """Copy what the loader needs, with a project file of its own."""
    for name in PARTS:
        source, target = ROOT / "packer_cli" / name, folder / "packer_cli" / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.parent.mkdir(exist_ok=True)
            shutil.copy(source, target)
    shutil.copytree(ROOT / "hbpack", folder / "hbpack", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "LICENSE", folder)
    page = (ROOT / "docs" / "loader.md").read_text(encoding="utf-8")
    intro = "hbpack-loader has the loader of hbpack alone, for machines that train. Install it or hbpack, not both."
    (folder / "README.md").write_text(f"{intro}\n\n{page}", encoding="utf-8")
    (folder / "pyproject.toml").write_text(_project_file(), encoding="utf-8")


def _project_file() -> str:
    """Make the project file of the loader: that of hbpack with another name and fewer dependencies."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = re.search(r'__version__ = "(.+)"', (ROOT / "packer_cli" / "version.py").read_text(encoding="utf-8"))
    assert version
    requirements = chain(project["dependencies"], *project["optional-dependencies"].values())
    by_name = {re.match(r"[\w.-]+", each)[0]: each for each in requirements}  # type: ignore[index]
    kept = {name: project[name] for name in ("readme", "requires-python", "license", "license-files", "classifiers")}
    values = {
        "name": "hbpack-loader",
        "version": version[1],
        "description": "The loader of hbpack: reads packed, balanced, scheduled training data.",
        **kept,
        "dependencies": [by_name[name] for name in NEEDS],
    }
    lines = ["[build-system]", 'requires = ["setuptools>=77"]', 'build-backend = "setuptools.build_meta"', ""]
    lines += ["[project]", *(f"{name} = {json.dumps(value)}" for name, value in values.items()), ""]
    lines += [
        "[project.optional-dependencies]",
        f"remote = {json.dumps([by_name[name] for name in NEEDS_OF_URLS])}",
        "",
    ]
    lines += ["[tool.setuptools.packages.find]", 'include = ["hbpack", "packer_cli*"]', ""]
    lines += ["[tool.setuptools.package-data]", 'hbpack = ["py.typed"]', 'packer_cli = ["py.typed"]', ""]
    return "\n".join(lines)


def main(output: Path) -> None:
    """Build source distributions, and wheels from these."""
    with tempfile.TemporaryDirectory(prefix="hbpack-loader-") as name:
        copy_loader(Path(name))
        with ThreadPoolExecutor() as pool:
            list(pool.map(partial(_build, output.absolute()), (ROOT, Path(name))))


def _build(output: Path, source: Path) -> None:
    subprocess.run([sys.executable, "-m", "build", "--outdir", output, source], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
