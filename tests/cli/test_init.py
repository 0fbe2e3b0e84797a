"""`hbpack init`: a config file that `hbpack pack` runs as it stands."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import yaml

from packer_cli.tokens.templates.written import EARLIER_REASONING
from packer_cli.tokens.tokenizer.loading import read_named

NAME_A_CONFIG = "name a training config of Axolotl or LLaMA-Factory, or a dataset_info.json"


@pytest.fixture
def folder(sample, tmp_path, monkeypatch):
    """The working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_config_runs_as_it_stands(hbpack, sample, tokenizer, folder):
    inputs = (sample / "chats.jsonl", f"{sample / 'journals.jsonl'}@0.5")
    done = hbpack("init", *inputs, "--tokenizer", tokenizer, "--gpus", 4)
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout == "Wrote hbpack.yaml, for 2 inputs. Next: hbpack pack --config hbpack.yaml\n"
    text = (folder / "hbpack.yaml").read_text()
    assert yaml.safe_load(text) == {
        "inputs": list(map(str, inputs)),
        "output": "packed",
        "tokenizer": str(tokenizer),
        "gpus": 4,
        "schema": "auto",
        "groups": ["16k:1", "32k:2"],
        "overflow": "split",
        "strategy": "balanced",
    }
    assert f"# {inputs[0]}: 1 file of jsonl, 795.8 KiB, about 2,000 records\n" in text
    assert "shape: messages 400; keys: id, messages.\n" in text
    assert max(map(len, text.splitlines())) <= 100 + len(str(sample))
    assert hbpack("pack", "--config", "hbpack.yaml", "--workers", 1).code == 0
    manifest = json.loads((folder / "packed" / "hbpack.json").read_text())
    assert manifest["num_gpus"] == 4


def test_each_kind_of_file_is_looked_at(hbpack, sample, tokenizer, folder):
    """A folder of many small files of chats, and few long ones of texts at its end and in a folder below."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    lines = (sample / "chats.jsonl").read_text().splitlines(keepends=True)
    (folder / "data" / "more").mkdir(parents=True)
    for number in range(100):
        (folder / "data" / f"{number:03}.jsonl").write_text("".join(lines[3 * number : 3 * number + 3]))
    pq.write_table(pa.table({"text": ["It is a long way. " * 3000] * 5}), folder / "data" / "texts.parquet")
    (folder / "data" / "more" / "qa.jsonl").write_text('{"instruction": "1 + 1", "output": "2"}\n' * 9)
    assert hbpack("init", "data", "--tokenizer", tokenizer, "--gpus", 4).code == 0
    text = (folder / "hbpack.yaml").read_text()
    options = yaml.safe_load(text)
    assert options["schema"] == "auto"
    assert "# Records of the sample have 3 shapes: alpaca, messages, text.\n" in text
    assert options["groups"] == ["16k:1", "32k:2"]
    number = int(re.search(r"102 files of jsonl/parquet, .*, about (\d+) records\n", text)[1])
    assert 200 < number < 450
    assert "rejected" not in hbpack("pack", "--config", "hbpack.yaml", "--workers", 1).stderr.replace(
        " 0 rejected", ""
    )


def test_what_the_template_loses_of_the_sample_is_said(hbpack, tokenizer, folder):
    thinking = {"role": "assistant", "content": "<think>\nOne.\n</think>\n\nTwo."}
    chat = [{"role": "user", "content": "Say two."}, thinking]
    lines = [json.dumps({"messages": chat * turns}) + "\n" for turns in (1, 2, 2)]
    (folder / "chats.jsonl").write_text("".join(lines))
    shutil.copytree(tokenizer, folder / "thinks")
    (folder / "thinks" / "chat_template.jinja").write_text(read_named("qwen3").replace("<|im_end|>", "<|end|>"))
    done = hbpack("init", "chats.jsonl", "--tokenizer", "thinks", "--json")
    assert done.code == 0
    assert done.stderr == f"warning: 2 records of the sample have {EARLIER_REASONING}\n"
    assert "turns" in json.loads(done.stdout)["missing"]
    text = (folder / "hbpack.yaml").read_text()
    assert "# turns: branch\n" in text
    assert "about 3 records" in text
    packed = hbpack("pack", "--config", "hbpack.yaml", "--workers", 1)
    assert f"warning: 2 records have {EARLIER_REASONING}\n" in packed.stderr


def test_an_input_of_which_more_is_skipped_than_read(hbpack, tokenizer, folder):
    (folder / "data").mkdir()
    (folder / "data" / "a.json").write_text(json.dumps([{"text": f"A text {n}."} for n in range(10)]))
    (folder / "data" / "b.pdf").write_bytes(b"0" * 3000)
    done = hbpack("init", "data", "--tokenizer", tokenizer, "--json")
    assert (done.code, done.stderr) == (0, "warning: data: skipped 1 file of .pdf (2.9 KiB)\n")
    record = json.loads(done.stdout)
    assert record["skipped"] == [{"suffix": ".pdf", "num_files": 1, "num_bytes": 3000}]
    assert "allow-skipped" in record["missing"]
    text = (folder / "hbpack.yaml").read_text()
    assert "about 10 records" in text
    assert hbpack("pack", "--config", "hbpack.yaml", "--workers", 1).code == 2
    (folder / "hbpack.yaml").write_text(text.replace("# allow-skipped: true", "allow-skipped: true"))
    assert hbpack("pack", "--config", "hbpack.yaml", "--workers", 1).code == 0


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_records_are_counted_whatever_they_hold(hbpack, tokenizer, folder, form):
    pairs = [{"prompt": f"{n}?", "chosen": "yes", "rejected": "no"} for n in range(150)]
    groups = [{"prompt": f"{n}?", "completions": ["a", "b", "c"]} for n in range(9)]
    records = list(map(json.dumps, pairs + groups))
    text = "\n".join(records) if form == "jsonl" else f"[{','.join(records)}]"
    (folder / f"a.{form}").write_text(text + "\n")
    assert hbpack("init", f"a.{form}", "--tokenizer", tokenizer).code == 0
    assert "about 159 records\n" in (folder / "hbpack.yaml").read_text()


def test_groups_for_a_model(hbpack, sample, tokenizer, folder):
    words = ("--tokenizer", tokenizer, "--model", sample / "model", "--gpu", "h100", "--json")
    done = hbpack("init", sample / "journals.jsonl", *words)
    result = json.loads(done.stdout)
    assert result["options"]["schema"] == "text"
    assert result["missing"] == ["global-tokens", "epochs"]
    text = (folder / "hbpack.yaml").read_text()
    assert "The shortest predicted epoch of the sample: " in text
    assert "groups: [" + ", ".join(result["options"]["groups"]).replace("6656:1", '"6656:1"') in text


def test_groups_are_no_longer_than_memory_holds(hbpack, sample, tokenizer, folder):
    long = folder / "long.jsonl"
    long.write_text("".join(json.dumps({"text": "It is a long way. " * number}) + "\n" for number in (9, 99, 9999)))
    words = ("--tokenizer", tokenizer, "--model", sample / "model", "--gpu", "h100:memory=24GiB", "--gpus", 8)
    done = hbpack("init", long, *words, "--json")
    assert done.code == 0, done.stderr
    text = " ".join((folder / "hbpack.yaml").read_text().replace("\n# ", " ").split())
    longest = re.search(r"Memory holds rows of (\w+) tokens, and 33.3% of the records are longer\.", text)[1]
    assert f"Write `groups: auto` and `max-length: {longest}` to choose by all of the data." in text
    assert json.loads(done.stdout)["options"]["groups"][-1].split(":")[0] == longest
    assert hbpack("pack", "--config", "hbpack.yaml", "--workers", 1).code == 0


def test_conversations_without_a_template(hbpack, sample, tokenizer, folder):
    bare = folder / "bare"
    bare.mkdir()
    shutil.copy(tokenizer / "tokenizer.json", bare)
    done = hbpack("init", sample / "chats.jsonl", sample / "journals.jsonl", "--tokenizer", bare)
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.endswith(" Next: give chat-template, eos-token in it, then hbpack pack --config hbpack.yaml\n")
    text = (folder / "hbpack.yaml").read_text()
    assert text.count("tokens, estimated from bytes") == 1
    assert "# chat-template: path/to/template.jinja\n" in text
    assert "# eos-token: <|endoftext|>\n" in text


def test_an_empty_input_beside_others(hbpack, sample, folder):
    (folder / "empty.jsonl").touch()
    assert hbpack("init", "empty.jsonl", sample / "chats.jsonl").code == 0
    assert "# empty.jsonl: empty\n" in (folder / "hbpack.yaml").read_text()


def test_what_is_unknown_is_a_comment(hbpack, sample, folder):
    done = hbpack("init", sample / "chats.jsonl", "-o", "my.yaml")
    assert done.stdout == (
        "Wrote my.yaml, for 1 input. Next: give tokenizer in it, then hbpack pack --config my.yaml\n"
    )
    text = (folder / "my.yaml").read_text()
    assert "# The tokenizer of the model that you train: its folder, or hub name.\n# tokenizer: path/to" in text
    assert "tokens, estimated from bytes" in text
    assert hbpack("pack", "--config", "my.yaml") == (2, "", "error: --tokenizer is required\n")


def test_from_axolotl(hbpack, sample, tokenizer, folder):
    config = {
        "base_model": str(tokenizer),
        "datasets": [
            {"path": str(sample / "chats.jsonl"), "type": "chat_template"},
            {"path": "gone.jsonl", "type": "alpaca"},
        ],
        "sequence_len": 2048,
        "val_set_size": 0.1,
    }
    (folder / "axolotl.yaml").write_text(yaml.safe_dump(config))
    done = hbpack("init", "--from", "axolotl.yaml", "--gpus", 2)
    assert done.code == 0
    assert done.stderr.startswith("warning: not carried over: not looked at: gone.jsonl")
    added = ["plugins: [packer_cli.loader.adapters.axolotl.HbpackPlugin]", "hbpack: packed"]
    assert [line.strip() for line in done.stdout.splitlines()[-2:]] == added
    assert (folder / "hbpack.yaml").read_text().splitlines()[-2:] == [f"#   {line}" for line in added]
    options = yaml.safe_load((folder / "hbpack.yaml").read_text())
    assert (options["groups"], options["overflow"], options["alpaca"]) == (["2k:1"], "drop", "stanford")
    assert options["validation"] == "10%"
    assert "schema" not in options


TRAINING = """
model_name_or_path: {tokenizer}
stage: sft
do_train: true
finetuning_type: lora
dataset: qa, chats
template: qwen
cutoff_len: 1024
max_samples: 1000
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
num_train_epochs: 3.0
val_size: 0.1
mask_history: true
"""


def test_from_a_training_config_of_llamafactory(hbpack, sample, tokenizer, folder):
    (folder / "data").mkdir()
    shutil.copy(sample / "chats.jsonl", folder / "data")
    (folder / "data" / "qa.jsonl").write_text('{"q": "1 + 1"}\n')
    info = {
        "other": {"file_name": "other.json"},
        "qa": {"file_name": "qa.jsonl", "columns": {"prompt": "q"}},
        "chats": {"file_name": "chats.jsonl", "formatting": "sharegpt", "columns": {"messages": "messages"},
                  "tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user",
                           "assistant_tag": "assistant"}},
    }  # fmt: skip
    (folder / "data" / "dataset_info.json").write_text(json.dumps(info))
    (folder / "sft.yaml").write_text(TRAINING.format(tokenizer=tokenizer))
    done = hbpack("init", "--from", "sft.yaml", "--gpus", 2)
    assert done.code == 0, done.stderr
    assert [line.split(": ")[2] for line in done.stderr.splitlines()] == ["data set qa", "template", "max_samples"]
    assert "plugins" not in done.stdout
    options = yaml.safe_load((folder / "hbpack.yaml").read_text())
    assert options == {
        "inputs": ["data/chats.jsonl"], "output": "packed", "schema": "messages", "tokenizer": str(tokenizer),
        "loss-on": "last-turn", "overflow": "truncate", "groups": ["1k:1"], "global-tokens": "16k", "epochs": 3,
        "validation": "10%", "gpus": 2,
    }  # fmt: skip
    assert hbpack("pack", "--config", "hbpack.yaml", "--workers", 1).code == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stage: sft\nfinetuning_type: full\n", "the LLaMA-Factory config names no dataset; add some, or name DATA"),
        ("dataset: chats\nstage: sft\n", "'data/dataset_info.json' cannot be read: No such file or directory; "),
        ("dataset: chats\ndataset_dir: d\n", "no data set is named 'chats' (did you mean 'chat'?); the file has chat"),
        ("train_dataset: data/demo.yaml\nmodel: m\n", "the config lists no datasets, as Axolotl's do, and no dataset"),
    ],
)
def test_a_training_config_that_names_no_data(hbpack, folder, text, message):
    (folder / "d").mkdir()
    (folder / "d" / "dataset_info.json").write_text('{"chat": {"file_name": "chat.json"}}')
    (folder / "sft.yaml").write_text(text)
    done = hbpack("init", "--from", "sft.yaml")
    assert done.code == 2
    assert done.stderr.startswith(f"error: --from: {message}")


def test_from_llamafactory(hbpack, sample, tokenizer, folder):
    tags = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
    entry = {"file_name": "c.jsonl", "formatting": "sharegpt", "columns": {"messages": "messages"}, "tags": tags}
    data = folder / "data"
    data.mkdir()
    (data / "c.jsonl").write_text("".join((sample / "chats.jsonl").read_text().splitlines(keepends=True)[:30]))
    (data / "dataset_info.json").write_text(
        json.dumps({"c": entry, "p": {"file_name": "p.json", "columns": {"images": "i"}}})
    )
    done = hbpack("init", "--from", "data/dataset_info.json", "--tokenizer", tokenizer, "--gpus", 1)
    assert done.stderr == "warning: not carried over: data set p: images: only text is packed\n"
    assert hbpack("pack", "--config", "hbpack.yaml", "--workers", 1).code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "DATA is required: name your files, folders or data sets, or a config with --from"),
        (
            ["bad.jsonl"],
            (
                "no record of the sample can be used (the first: bad.jsonl:1: broken JSON: invalid literal, expected "
                "'null' at column 1); correct the data, or name others"
            ),
        ),
        (["empty.jsonl"], "the inputs hold no data: empty.jsonl; name others"),
        (["bad.jsonl", "--model", "m"], "--gpu is missing; give it too, or leave --model out"),
        (["bad.jsonl", "-o", "bad.jsonl"], "--output: 'bad.jsonl' already exists; remove it, or name another file"),
        (
            ["bad.jsonl", "-o", "a/b.yaml"],
            "--output: 'a/b.yaml' is in a folder that does not exist; name a file, such as hbpack.yaml",
        ),
        (["bad.jsonl", "-o", "."], "--output: '.' is a folder; name a file, such as hbpack.yaml"),
        (
            ["--from", "bad.jsonl"],
            f"--from: 'bad.jsonl' must hold a mapping; {NAME_A_CONFIG}",
        ),
        (
            ["--from", "none.yaml"],
            f"--from: 'none.yaml' cannot be read: No such file or directory; {NAME_A_CONFIG}",
        ),
        (
            ["--from", "broken.json"],
            (
                "--from: 'broken.json' is not JSON: Expecting property name enclosed in double quotes: line 1 column "
                f"2 (char 1); {NAME_A_CONFIG}"
            ),
        ),
    ],
)
def test_errors(hbpack, folder, arguments, message):
    (folder / "bad.jsonl").write_text("no\n")
    (folder / "broken.json").write_text("{")
    (folder / "empty.jsonl").touch()
    done = hbpack("init", *arguments)
    assert done.code == (1 if "no record" in message else 2)
    assert (done.stdout, done.stderr) == ("", f"error: {message}\n")
    assert not (folder / "hbpack.yaml").exists()


def test_a_damaged_table_is_left_out(hbpack, lines_of, tmp_path):
    """As hbpack pack leaves it out; the file of options names it."""
    (tmp_path / "data").mkdir()
    lines_of({"text": "a text"}, name="data/a.jsonl")
    (tmp_path / "data/b.parquet").write_bytes(b"PAR1" + bytes(40))
    done = hbpack("init", tmp_path / "data", "--output", tmp_path / "hbpack.yaml")
    assert done.code == 0, done.stderr
    text = " ".join((tmp_path / "hbpack.yaml").read_text().replace("\n# ", " ").split())
    assert f"{tmp_path}/data/b.parquet: damaged: opening it fails (" in text
