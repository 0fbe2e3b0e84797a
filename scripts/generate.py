"""Make what is generated from the code: the references of CLI, API and loader, the schemas, and examples.

`--check` writes nothing and fails if a file is not up to date.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, get_type_hints

import pyarrow as pa
from api_reference import api_options, api_page, loader_page
from cli_reference import cli_reference
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from packer_cli.cli.failure import ErrorOutput
from packer_cli.cli.log import FORMATS
from packer_cli.cli.print_set import SetOutput
from packer_cli.commands.doctor import Checkup
from packer_cli.commands.export import Exported
from packer_cli.commands.find import Places
from packer_cli.commands.init import WrittenConfig
from packer_cli.commands.predict import DryRun
from packer_cli.commands.rebalance import Rebalanced
from packer_cli.commands.report import Report
from packer_cli.commands.status import Status
from packer_cli.commands.tokenize import Tokenized
from packer_cli.commands.versions import Versions
from packer_cli.compare import Comparison
from packer_cli.compare.outcome import PlanSimulation
from packer_cli.config import PackConfig
from packer_cli.cost.profile import Profile
from packer_cli.format.manifest import Manifest
from packer_cli.format.records import json_names, json_properties
from packer_cli.format.schema import RANK_SCHEMA, RowColumns, iteration_schema
from packer_cli.groups.auto import FoundGroups
from packer_cli.plan.figures import Stats
from packer_cli.plan.strategies.protocol import LayoutChoice
from packer_cli.show.view import View
from packer_cli.tokens.index import StoreIndex
from packer_cli.verify.verifier import Verified

ROOT = Path(__file__).parent.parent
DIALECT = "https://json-schema.org/draft/2020-12/schema"

OUTPUTS: dict[str, Any] = {
    "init": WrittenConfig,
    "set": SetOutput,
    "dry-run": DryRun,
    "tokenize": Tokenized,
    "rebalance": Rebalanced,
    "versions": Versions,
    "export": Exported,
    "doctor": Checkup,
    "stats": Stats,
    "compare": Comparison,
    "simulate": PlanSimulation | Comparison,
    "report": Report,
    "groups": FoundGroups | LayoutChoice,
    "verify": Verified,
    "status": Status,
    "show": list[View],
    "find": Places,
}
"""The name of each schema of what `--json` prints, and the record that it describes."""


class RecordSchema(GenerateJsonSchema):
    """The schema of records: with docstrings, the properties that are in their JSON, and no other keys."""

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        kind = schema["cls"]
        described = {**_docstrings(kind), **{name: inspect.getdoc(get) for name, get in json_properties(kind).items()}}
        found = super().dataclass_schema(schema)
        for name, getter in json_properties(kind).items():
            adapter = TypeAdapter(get_type_hints(getter)["return"])
            found["properties"][name] = self.generate_inner(adapter.core_schema)
        hidden = {each.name for each in fields(kind)} - {name for name, _ in json_names(kind)}
        found["properties"] = {name: value for name, value in found["properties"].items() if name not in hidden}
        for name, value in found["properties"].items():
            if described.get(name) and "description" not in value:
                found["properties"][name] = {**value, "description": described[name]}
        needed = [name for name in found.pop("required", ()) if name in found["properties"]]
        return {**found, **({"required": needed} if needed else {}), "additionalProperties": False}


def _docstrings(kind: type) -> dict[str, str]:
    """Find the docstrings of the fields of a dataclass and its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if is_dataclass(base):
            (body,) = ast.parse(inspect.getsource(base)).body
            for each, after in pairwise(body.body):
                if isinstance(each, ast.AnnAssign) and isinstance(after, ast.Expr):
                    found[each.target.id] = inspect.cleandoc(after.value.value)
    return found


def json_schema(model: Any, title: str) -> str:
    schema = {"$schema": DIALECT, **TypeAdapter(model).json_schema(schema_generator=RecordSchema), "title": title}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def config_schema() -> str:
    """Make the schema of a `--config` file: option names with `-` or `_`, and the options that decide no bytes."""
    schema = PackConfig.model_json_schema(mode="validation")
    properties = dict(schema["properties"])
    properties["schema"] = properties.pop("record_schema")
    properties["inputs"] = {"anyOf": [{"type": "string"}, properties["inputs"]]}
    properties["output"] = {"type": "string", "description": "Folder to write: new, empty, or an earlier run's."}
    properties["engine"] = {"type": "string", "description": "local, ray or ray:ADDRESS."}
    properties["workers"] = {"type": "integer", "minimum": 1, "description": "Worker processes."}
    properties["json"] = {"type": "boolean", "description": "Print JSON instead of tables."}
    properties["log_format"] = {"enum": [*FORMATS], "description": "Lines on stderr with time and level."}
    properties["wait"] = {"type": ["string", "integer"], "description": "Time to wait for another run, such as 5m."}
    properties["dry_run"] = {"type": "boolean", "description": "Write nothing: predict."}
    both = {**properties, **{name.replace("_", "-"): value for name, value in properties.items()}}
    schema = {"$schema": DIALECT, **schema, "title": "hbpack --config", "properties": dict(sorted(both.items()))}
    del schema["required"]  # The command line may give what the file does not.
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def arrow_schemas() -> str:
    tokens = (pa.uint16(), pa.int32())
    schemas = {
        "token-store-part": [RowColumns().part(token) for token in tokens],
        "shard": [RowColumns().shard(token) for token in tokens],
        "shard-with-trees": [RowColumns(of_items=True).shard(token) for token in tokens],
        "iterations": [iteration_schema(())],
        "rank": [RANK_SCHEMA],
    }
    described = {
        name: [
            {
                "name": fields[0].name,
                "type": " or ".join(dict.fromkeys(_type(field.type) for field in fields)),
                "nullable": fields[0].nullable,
            }
            for fields in zip(*either, strict=True)
        ]
        for name, either in schemas.items()
    }
    return json.dumps(described, indent=2) + "\n"


def _type(kind: pa.DataType) -> str:
    return f"list<{kind.value_type}>" if pa.types.is_list(kind) else str(kind)


def example_config() -> str:
    return """\
# You can set every option of `hbpack pack` here: hbpack pack --config config.yaml
inputs:
  - examples/sample/chats.jsonl
  - examples/sample/journals.jsonl@2.0
output: demo-out
tokenizer: examples/sample/tokenizer
groups: [1k:1, 8k:4]
gpus: 8
packing: isf:rounds=50
overflow: split
global-tokens: 64k
curriculum-steps: 10
epochs: 2
seed: 0
"""


def generated() -> dict[Path, str]:
    return {
        ROOT / "docs" / "cli.md": cli_reference(),
        ROOT / "docs" / "api.md": api_page(ROOT / "docs" / "api.md"),
        ROOT / "docs" / "loader-api.md": loader_page(),
        ROOT / "packer_cli" / "commands" / "option_types.pyi": api_options(),
        ROOT / "schemas" / "config.schema.json": config_schema(),
        ROOT / "schemas" / "manifest.schema.json": json_schema(Manifest, "hbpack.json"),
        ROOT / "schemas" / "tokens.schema.json": json_schema(StoreIndex, "tokens.json"),
        ROOT / "schemas" / "profile.schema.json": json_schema(Profile, "hbpack profile"),
        ROOT / "schemas" / "error.schema.json": json_schema(ErrorOutput, "--json: error"),
        **{
            ROOT / "schemas" / "output" / f"{name}.schema.json": json_schema(OUTPUTS[name], f"--json: {name}")
            for name in OUTPUTS
        },
        ROOT / "schemas" / "arrow.json": arrow_schemas(),
        ROOT / "schemas" / "examples" / "config.yaml": example_config(),
    }


def main() -> int:
    stale = []
    for path, text in generated().items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(str(path.relative_to(ROOT)))
        if "--check" not in sys.argv:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if "--check" in sys.argv and stale:
        print(f"not up to date: {', '.join(stale)}; run make docs")
        return 1
    print(f"{'wrote ' + ', '.join(stale) if stale else 'generated files are up to date'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
