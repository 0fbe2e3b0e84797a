"""What the API says of itself, out of docstrings and config models: the types of its options, and its reference."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import packer_cli
from packer_cli.api.arguments import python_name
from packer_cli.api.iterations import Iteration, Iterations, MicroBatch
from packer_cli.api.results import Comparison, Simulation, Stats
from packer_cli.config import AutoGroupsConfig, GpuConfig, PackConfig, PlanConfig, TokenizeConfig, WriteConfig
from packer_cli.config.run_options import BoundConfig, TrainConfig, WorkersConfig

OPTIONS = {
    "GpuOptions": GpuConfig,
    "AutoGroupsOptions": AutoGroupsConfig,
    "PlanOptions": PlanConfig,
    "TokenizeOptions": TokenizeConfig,
    "WriteOptions": WriteConfig,
    "PackOptions": PackConfig,
    "WorkersOptions": WorkersConfig,
    "BoundOptions": BoundConfig,
    "TrainOptions": TrainConfig,
}
"""The typed dictionary of each model; a model that another is made of comes before it."""
SECTIONS = {
    "Options of a plan": (PlanConfig, AutoGroupsConfig, GpuConfig),
    "Options of a corpus": (TokenizeConfig,),
    "Options of shards": (WriteConfig,),
    "Other options": (WorkersConfig, BoundConfig, TrainConfig),
}
RESULTS = (Iterations, Iteration, MicroBatch, Stats, Comparison, Simulation)
"""What functions and methods give."""
PATHS = {"chat_template", "model", "profile", "tokenizer"}
TYPES = {"integer": "int", "number": "float", "string": "str", "boolean": "bool", "null": "None"}
MARK = "<!-- The rest is generated from the docstrings by `make docs`. -->\n"


def api_options() -> str:
    """The options as typed dictionaries, for editors and mypy."""
    lines = [
        '"""The options of the API, for editors and mypy: generated from `packer_cli.config` by `make docs`."""',
        "",
        "from __future__ import annotations",
        "",
        "import os",
        "from collections.abc import Mapping, Sequence",
        "from typing import Any, Literal, TypedDict",
    ]
    names = {model: name for name, model in OPTIONS.items()}
    for name, model in OPTIONS.items():
        bases = [names[base] for base in model.__bases__ if base in names] or ["TypedDict"]
        lines += ["", "", f"class {name}({', '.join(bases)}, total=False):", f'    """{model.__doc__}"""']
        own = own_options(model)
        lines += [""] if own else []
        for option, (kind, _, text) in own.items():
            lines.append(f"    {option}: {kind} | None")
            lines += textwrap.wrap(f'"""{text}"""', 119, initial_indent="    ", subsequent_indent="    ")
    return _formatted("\n".join(lines) + "\n")


def api_page(path: Path) -> str:
    """The guide as it is, then the reference."""
    guide, mark, _ = path.read_text(encoding="utf-8").partition(MARK)
    public = [getattr(packer_cli, name) for name in packer_cli.__all__ if not name.startswith("__")]
    functions = [each for each in public if inspect.isfunction(each)]
    classes = [each for each in public if inspect.isclass(each) and not issubclass(each, Exception)]
    lines = ["", "## Reference"]
    for each in functions:
        lines += ["", f"### {each.__name__}", "", f"`{_call(each)}`", "", *_described(each)]
    for each in (*classes, *RESULTS):
        lines += ["", f"### {each.__name__}", "", *_described(each)]
        for name, text in _members(each):
            lines += ["", f"- `{name}`: {text[0]}", *(f"  {line}".rstrip() for line in text[1:])]
    for title, models in SECTIONS.items():
        lines += ["", f"### {title}", "", "| option | type | default | |", "|---|---|---|---|"]
        for name, row in ((name, row) for model in models for name, row in own_options(model).items()):
            kind, default, text = (cell.replace("|", "\\|") for cell in row)
            lines.append(f"| `{name}` | `{kind}` | {default and f'`{default}`'} | {text} |")
    return guide + mark + "\n".join(lines) + "\n"


def own_options(model: type[BaseModel]) -> dict[str, tuple[str, str, str]]:
    """The options that a model adds to those of its bases: name -> type, default, description."""
    inherited = {name for base in model.__bases__ for name in getattr(base, "model_fields", {})}
    schema = model.model_json_schema(mode="validation")["properties"]
    options = {}
    for name, field in model.model_fields.items():
        if name in inherited or name not in schema or name == "inputs":
            continue
        kinds = {*_types(schema[name]), *(["os.PathLike[str]"] if name in PATHS else [])} - {"None"}
        default = "" if field.is_required() or field.default is None else repr(field.default)
        text = re.sub(r"--([a-z][a-z-]+)", lambda flag: f"`{flag[1].replace('-', '_')}`", field.description or "")
        options[python_name(name)] = " | ".join(sorted(kinds, reverse=True)), default, " ".join(text.split())
    return options


def _types(schema: dict[str, Any]) -> list[str]:
    """Python's types of a JSON Schema."""
    if "anyOf" in schema:
        return [kind for each in schema["anyOf"] for kind in _types(each)]
    if "enum" in schema or "const" in schema:
        return [f"Literal[{', '.join(map(repr, schema.get('enum', [schema.get('const')])))}]"]
    if schema.get("type") == "array":
        return [f"Sequence[{' | '.join(_types(schema['items']))}]"]
    return [TYPES[schema["type"]] if schema.get("type") in TYPES else "Mapping[str, Any]"]


def _call(function: Any) -> str:
    """How a function is called: its own parameters, and `**options` for those of the models."""
    own = inspect.signature(inspect.unwrap(function), follow_wrapped=False).parameters.values()
    words = []
    for each in own:
        if each.kind is each.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        default = "" if each.default is each.empty else f"={each.default!r}"
        words.append(f"**{each.name}" if each.kind is each.VAR_KEYWORD else each.name + default)
    return f"{function.__name__}({', '.join(word for word in words if word != 'self')})"


def _members(made: type) -> Iterator[tuple[str, list[str]]]:
    """Fields, properties and methods of a class: how to write each, and what it is."""
    if is_dataclass(made):
        texts = {name: text for base in reversed(made.__mro__) for name, text in _field_texts(base).items()}
        yield from ((field.name, texts.get(field.name) or [""]) for field in fields(made))
    for base in reversed(made.__mro__[:-1]):
        for name, member in vars(base).items():
            if name.startswith("_") or base.__module__.split(".")[0] != "packer_cli":
                continue
            if isinstance(member, property):
                yield name, _described(member)
            elif inspect.isfunction(member):
                yield _call(member), _described(member)


def _field_texts(made: type) -> dict[str, list[str]]:
    """The docstrings below the fields of a class."""
    if not is_dataclass(made):
        return {}
    found = re.findall(r'^    (\w+): [^\n]+\n    """(.*?)"""', inspect.getsource(made), re.DOTALL | re.MULTILINE)
    return {name: inspect.cleandoc(text).splitlines() for name, text in found}


def _described(thing: Any) -> list[str]:
    """A docstring as Markdown: the items of its sections become a list."""
    lines = []
    for line in (inspect.getdoc(thing) or "").splitlines():
        section = re.fullmatch(r"(Args|Raises|Returns):", line)
        item = re.fullmatch(r"    (\w+): (.*)", line)
        if section:
            lines += [{"Args": "Arguments:", "Raises": "Errors:", "Returns": "Result:"}[section[1]], ""]
        elif item:
            lines.append(f"- `{item[1]}`: {item[2]}")
        else:
            lines.append(line.removeprefix("    ") if line.startswith("    ") and "- `" not in line else line)
    return lines


def _formatted(code: str) -> str:
    """As `ruff format` has it."""
    words = [sys.executable, "-m", "ruff", "format", "--stdin-filename", "options.py", "-"]
    root = Path(__file__).parent.parent
    return subprocess.run(words, input=code, capture_output=True, text=True, check=True, cwd=root).stdout
