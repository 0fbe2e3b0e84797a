"""Print constraints with the lowest version of each dependency that pyproject.toml allows."""

from __future__ import annotations

import re
import tomllib
from itertools import chain
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
for requirement in chain(project["dependencies"], *project["optional-dependencies"].values()):
    print(re.sub(r"^([\w.-]+)(\[\w+\])?>=", r"\1==", requirement))
