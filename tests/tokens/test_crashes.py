"""A file that crashes its reader is rejected, with its name, and everything else is tokenized."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pyarrow as pa
import pytest

from packer_cli.commands.tokenize import run_tokenize
from packer_cli.config import TokenizeConfig
from packer_cli.engine.local import LocalEngine
from packer_cli.engine.progress import LOGGER
from packer_cli.errors import RunError
from packer_cli.tokens import stage
from tests.reference import tree


@pytest.fixture
def config(tmp_path, repo):
    """Six inputs, of which two crash; the small ones share a part."""
    for number, name in enumerate(["a", "opens", "b", "reads", "c"]):
        table = pa.table({"text": [f"text {number} {i}" for i in range(3)]})
        with pa.ipc.new_file(str(tmp_path / f"{name}.arrow"), table.schema) as writer:
            writer.write_table(table)
    (tmp_path / "d.jsonl").write_text('{"text": "last"}\nbroken\n')
    names = ["a.arrow", "opens.arrow", "b.arrow", "reads.arrow", "c.arrow", "d.jsonl"]
    return TokenizeConfig(
        inputs=tuple(str(tmp_path / name) for name in names), tokenizer=str(repo / "examples" / "sample" / "tokenizer")
    )


PRELOAD = ["tests.tokens.crashing_reader"]


def test_what_crashes_its_reader_is_rejected(config, tmp_path, caplog):
    caplog.set_level("INFO", LOGGER.name)
    for workers in (1, 2):
        out = tmp_path / f"out-{workers}"
        with LocalEngine(workers, PRELOAD) as engine:
            index = run_tokenize(config, out, engine)
        files = {Path(file.path).name: file for part in index.parts for file in part.files}
        assert {name: (file.num_samples, file.num_rejected) for name, file in files.items()} == {
            "a.arrow": (3, 0), "opens.arrow": (0, 1), "b.arrow": (3, 0),
            "reads.arrow": (0, 1), "c.arrow": (3, 0), "d.jsonl": (1, 1),
        }  # fmt: skip
        lines = [json.loads(line) for path in (out / "tokens").glob("rejected-*") for line in path.open()]
        reasons = [
            "damaged: opening it crashes the reader (SIGSEGV); what it holds is left out",
            "damaged: reading it from record 1 on crashes the reader (SIGSEGV); what it holds from there is left out",
        ]
        assert [(line["line"], line["reason"]) for line in lines[:2]] == [(1, reason) for reason in reasons]
        said = [line for line in caplog.messages if not line.startswith(("tokenizer", "template", "loss", "EOS"))]
        caplog.clear()
        assert said[:2] == [
            f"{tmp_path}/opens.arrow: {reasons[0]}", f"{tmp_path}/reads.arrow: {reasons[1]}",
        ]  # fmt: skip
        assert said[2].startswith("tokenized 13 records: 10 samples (10 text), ")
    assert tree(tmp_path / "out-1") == tree(tmp_path / "out-2")


def crash(folder, task):
    os.kill(os.getpid(), signal.SIGSEGV)


def test_a_crash_of_something_else_names_the_files(config, tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "work", crash)
    config = config.model_copy(update={"inputs": config.inputs[:1]})
    with LocalEngine(1, PRELOAD) as engine, pytest.raises(RunError) as caught:
        run_tokenize(config, tmp_path / "out", engine)
    message = f"a worker process crashed (SIGSEGV) while it encoded records of {config.inputs[0]}; leave them out"
    assert str(caught.value) == message
