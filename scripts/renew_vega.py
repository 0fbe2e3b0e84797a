"""Fetch the charting libraries of `hbpack report` with npm, with their licences: `python scripts/renew_vega.py`.

To renew them, change `VERSIONS`, run this, and look at a page (`pytest tests/report`).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSIONS = {"vega": "6.4.0", "vega-lite": "6.4.3", "vega-embed": "7.3.0"}
FOLDER = Path(__file__).parent.parent / "packer_cli" / "report" / "vendor"


def main() -> int:
    with tempfile.TemporaryDirectory() as work:
        wanted = [f"{name}@{version}" for name, version in VERSIONS.items()]
        subprocess.run(
            ["npm", "install", "--silent", "--ignore-scripts", "--no-save", "--prefix", work, *wanted], check=True
        )
        modules = Path(work) / "node_modules"
        FOLDER.mkdir(exist_ok=True)
        for name in VERSIONS:
            shutil.copyfile(modules / name / "build" / f"{name}.min.js", FOLDER / f"{name}.min.js")
        (FOLDER / "LICENSES.txt").write_text(_licences(modules), encoding="utf-8")
    (FOLDER / "versions.json").write_text(json.dumps(VERSIONS, indent=2) + "\n", encoding="utf-8")
    return 0


def _licences(modules: Path) -> str:
    """Read the licences of the libraries and of all that they depend on; equal ones once."""
    by_text: dict[str, list[str]] = {}
    for name in sorted(_held(modules)):
        package = json.loads((modules / name / "package.json").read_text(encoding="utf-8"))
        files = [path for path in sorted((modules / name).iterdir()) if path.name.upper().startswith("LICEN")]
        text = files[0].read_text(encoding="utf-8").strip() if files else f"Licence: {package['license']}"
        text = "\n".join(line.rstrip() for line in text.splitlines())
        by_text.setdefault(text, []).append(f"{name} {package['version']}")
    begin = f"Licences of {', '.join(f'{n} {v}' for n, v in VERSIONS.items())}, and of what they depend on."
    parts = [f"{', '.join(names)}\n\n{text}" for text, names in by_text.items()]
    rule = f"\n\n{'-' * 80}\n\n"
    return rule.join([begin, *parts]) + "\n"


def _held(modules: Path) -> set[str]:
    """List the libraries and what they depend on."""
    held: set[str] = set()
    waiting = list(VERSIONS)
    while waiting:
        name = waiting.pop()
        if name in held or not (modules / name).exists():
            continue
        held.add(name)
        waiting += json.loads((modules / name / "package.json").read_text(encoding="utf-8")).get("dependencies", {})
    return held


if __name__ == "__main__":
    sys.exit(main())
