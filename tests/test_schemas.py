"""What is written validates against `schemas/`."""

from __future__ import annotations

import json

import jsonschema
import pyarrow as pa
import pytest
import yaml

from packer_cli.cli.main import main
from tests.cli_runner import run
from tests.reference import home


@pytest.fixture(scope="module")
def packed(tmp_path_factory, repo):
    output = tmp_path_factory.mktemp("schemas") / "out"
    sample = repo / "examples" / "sample"
    run(
        main, "pack", sample / "chats.jsonl", "--tokenizer", sample / "tokenizer", "--groups", "1k:1", "--gpus", 2,
        "--output", output, "--workers", 1,
    )  # fmt: skip
    return output


def schema(repo, name):
    loaded = json.loads((repo / "schemas" / name).read_text())
    jsonschema.Draft202012Validator.check_schema(loaded)
    return loaded


@pytest.mark.parametrize(
    ("file", "name"), [("hbpack.json", "manifest.schema.json"), ("tokens/tokens.json", "tokens.schema.json")]
)
def test_json_files_validate(packed, repo, file, name):
    data = json.loads((packed / file).read_text())
    jsonschema.validate(data, schema(repo, name))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**data, "more": 1}, schema(repo, name))


def test_the_example_config_validates_and_runs(repo, tmp_path, monkeypatch):
    path = repo / "schemas" / "examples" / "config.yaml"
    data = yaml.safe_load(path.read_text())
    jsonschema.validate(data, schema(repo, "config.schema.json"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**data, "gpu": 1}, schema(repo, "config.schema.json"))
    monkeypatch.chdir(repo)
    done = run(main, "pack", "--config", path, "--output", tmp_path / "out", "--workers", 1)
    assert done.code == 0
    assert (home(tmp_path / "out") / "ranks" / "epoch-001" / "rank-00007.arrow").exists()


def test_arrow_files_have_the_described_schemas(packed, repo):
    described = json.loads((repo / "schemas" / "arrow.json").read_text())
    files = {
        "token-store-part": next(packed.glob("tokens/part-*.arrow")),
        "shard": next(home(packed).glob("shards/*/shard-*.arrow")),
        "iterations": next(home(packed).glob("ranks/*/iterations.arrow")),
        "rank": next(home(packed).glob("ranks/*/rank-*.arrow")),
    }
    assert sorted(described) == sorted([*files, "shard-with-trees"])
    for name, path in files.items():
        fields = pa.ipc.open_file(pa.memory_map(str(path))).schema
        assert [field.name for field in fields] == [field["name"] for field in described[name]]
        assert not any(field.nullable for field in fields)
