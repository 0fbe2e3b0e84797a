"""The colors of the page, where no page says what they are. The style sheet of the page has them."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def light_colors() -> dict[str, str]:
    """The colors of the light page by the names of their CSS variables, such as `ink`."""
    style = files("packer_cli.report").joinpath("template", "page.css").read_text(encoding="utf-8")
    return dict(re.findall(r"--([\w-]+): (#\w+);", style.partition("@media")[0]))


def without_variables(value: Any) -> Any:
    """JSON values in which each CSS variable is the color that it stands for on the light page."""
    if isinstance(value, dict):
        return {name: without_variables(each) for name, each in value.items()}
    if isinstance(value, list):
        return [without_variables(each) for each in value]
    if isinstance(value, str) and value.startswith("var(--"):
        return light_colors()[value.removeprefix("var(--").removesuffix(")")]
    return value
