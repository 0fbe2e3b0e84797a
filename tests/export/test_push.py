"""`hbpack export --push-to-hub`, and packed sets at `hf://`: the Hub's own client, on a server in this process."""

from __future__ import annotations

import importlib
import json
import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import pytest
import yaml

pytest.importorskip("flask")

from packer_cli.cli.main import main
from tests.cli_runner import run
from tests.hub_server import hub_server
from tests.reference import home

NUM_CHATS = 60

READ = """
import datasets, torch
from packer_cli.loader import PackedDataset

pushed = datasets.load_dataset("user/trl", split="train", cache_dir="hf-cache")
assert pushed.to_list() == datasets.load_from_disk("TRL").to_list()

for name in ("SET", "SET/validation"):
    url = name.replace("SET", "hf://datasets/user/set")
    there, here = (PackedDataset(path, 0, 1, cache_dir="cache") for path in (url, name))
    assert len(there) == len(here) > 0
    for a, b in zip(there, here, strict=True):
        assert a["pack_id"] == b["pack_id"]
        assert torch.equal(a["input_ids"], b["input_ids"])
        assert torch.equal(a["labels"], b["labels"])
"""

TRAIN = """
from packer_cli.loader.adapters.transformers import packed
from tests.tiny_model import tiny_llama
from transformers import Trainer, TrainingArguments

losses = []
for path in ("SET", "hf://datasets/user/set"):
    args = TrainingArguments("runs", max_steps=2, logging_steps=1, save_strategy="no", report_to="none", use_cpu=True)
    trainer = packed(Trainer)(tiny_llama(), args, train_dataset=path, eval_dataset=f"{path}/validation")
    trainer.train()
    logged = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    losses.append([*logged, trainer.evaluate()["eval_loss"]])
    tiny_llama.cache_clear()
assert losses[0] == losses[1]
assert len(losses[0]) == 3
"""


@pytest.fixture(scope="module")
def hub():
    with hub_server() as server:
        yield server


@pytest.fixture(scope="module")
def folder(repo, tmp_path_factory):
    """`SET`, with a validation set, and another set of the same data."""
    sample, folder = repo / "examples/sample", tmp_path_factory.mktemp("push")
    lines = (sample / "chats.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:NUM_CHATS]
    (folder / "chats.jsonl").write_text("".join(lines), encoding="utf-8")
    sets = {"SET": ["--groups", "256:1,1k:1", "--validation", "20%"], "OTHER": ["--groups", "512:1"]}
    for name, options in sets.items():
        given = ["--tokenizer", sample / "tokenizer", "--gpus", 1, "--workers", 1, "--output", folder / name]
        assert run(main, "pack", folder / "chats.jsonl", *given, *options).code == 0
    return folder


def prepare(folder, environment):
    """In a process of its own: the Hub's client takes its server from the environment when it is imported."""
    os.chdir(folder)
    os.environ.update(environment)
    for name in ("datasets", "huggingface_hub", "packer_cli.commands.export", "packer_cli.loader"):
        importlib.import_module(name)


def run_forked(token, arguments):
    """What a process has that knows nothing of the commands before: a fork of the prepared one."""
    os.environ["HF_TOKEN"] = token
    with ProcessPoolExecutor(1, get_context("fork")) as fork:
        if arguments[0] == "python":
            return fork.submit(run, partial(exec, arguments[1], {})).result()
        return fork.submit(run, main, *arguments).result()


@pytest.fixture(scope="module")
def hbpack(hub, folder):
    """Runs a command as a user who is logged in."""
    own = hub.environment | {"HF_HOME": str(folder / "home")}
    with ProcessPoolExecutor(1, get_context("spawn"), prepare, (folder, own)) as process:

        def run_command(*arguments, token="hf_user", code=0):
            done = process.submit(run_forked, token, arguments).result()
            assert done.code == code, done.stderr
            return done

        yield run_command


def local_files(folder):
    """Of a set, without its token store."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths if path.name != "store.json"}
    return {name: content for name, content in files.items() if not name.startswith("tokens/")}


def card_of(hub, name):
    _, head, text = hub.files(name)["README.md"].decode().split("---\n", 2)
    return yaml.safe_load(head), text


@pytest.mark.slow
def test_what_was_pushed_is_trained(hub, folder, hbpack):
    pytest.importorskip("accelerate")
    hbpack("export", "SET", "--push-to-hub", "set")
    hbpack("python", TRAIN)


def test_what_was_pushed_is_read(hub, folder, hbpack):
    done = hbpack("export", "SET", "--push-to-hub", "set", "--license", "apache-2.0")
    assert 'Pushed SET to user/set. Next: train with train_dataset="hf://datasets/user/set"\n' in done.stdout
    pushed = {
        name: content for name, content in hub.files("user/set").items() if name not in (".gitattributes", "README.md")
    }
    assert pushed == local_files(home(folder / "SET"))
    assert hub.private == set()
    head, text = card_of(hub, "user/set")
    assert head == {"license": "apache-2.0", "tags": ["hbpack"], "viewer": False}
    manifest = json.loads((folder / "SET/hbpack.json").read_text())
    tokenizer, overall = manifest["tokenizer"], manifest["metrics"]["overall"]
    for said in (
        'train_dataset="hf://datasets/user/set"',
        f"fingerprint `{tokenizer['fingerprint']}`",
        f"| chat template | fingerprint `{tokenizer['chat_template_fingerprint']}` |",
        f"| padding ratio (PR) | {overall['pr']:.4f} |",
        f"| attention balance ratio (ABR) | {overall['abr']:.4f} |",
        "| planned for | 1 GPU |",
        "| recipe | strategy balanced, packing bfs, overflow split |",
        f"| {folder / 'chats.jsonl'} | 1 |",
        "| tokenizer | tokenizer, fingerprint ",
    ):
        assert said in text

    done = hbpack("export", "SET", "--to", "trl", "--output", "TRL", "--push-to-hub", "user/trl", "--private")
    assert 'Next: load_dataset("user/trl"), or ' in done.stdout
    assert hub.private == {"user/trl"}
    head, text = card_of(hub, "user/trl")
    assert head == {"tags": ["hbpack"], "configs": [{"config_name": "default", "data_files": "data-*.arrow"}]}
    assert "No licence was named" in text
    hbpack("python", READ)
    assert "is sound: " in hbpack("verify", "hf://datasets/user/set").stdout

    # A revision stays what it was, what a user added stays, and nothing of the old set is left.
    first = hub.sha("user/set")
    hub.files("user/set")["LICENSE"] = b"mine"
    hbpack("export", "OTHER", "--push-to-hub", "user/set")
    pushed = hub.files("user/set").keys() - {".gitattributes", "README.md", "LICENSE"}
    assert pushed == local_files(home(folder / "OTHER")).keys()
    assert hub.files("user/set")["LICENSE"] == b"mine"
    for name in ("user/set", f"user/set@{first}"):
        assert "is sound: " in hbpack("verify", f"hf://datasets/{name}").stdout
    assert "does not exist" in hbpack("stats", "hf://datasets/user/set@typo", code=2).stderr

    done = hbpack("export", "OTHER", "--push-to-hub", "user/set", "--private", code=2)
    assert done.stderr.startswith(
        "error: --private: the data set user/set on the Hub is public; make it private there"
    )
    hub.commits["user/mine"] = [{"data.csv": b"a,b\n"}]
    for name in ("mine", "trl"):
        done = hbpack("export", "SET", "--push-to-hub", name, code=2)
        assert done.stderr == (
            f"error: --push-to-hub: the data set user/{name} on the Hub holds other files; give another name\n"
        )


def test_a_copy_on_this_machine_is_of_one_version(hub, hbpack):
    """Also of a file without a checksum, which is replaced by one of its size."""
    read = "from packer_cli.remote.local import map_file; from packer_cli.remote.path import as_path; "
    read += "print(map_file(as_path('hf://datasets/user/file/a')).read().decode())"
    hub.commits["user/file"] = [{"a": b"first"}]
    assert hbpack("python", read).stdout == "first\n"
    hub.commits["user/file"].append({"a": b"other"})
    assert hbpack("python", read).stdout == "other\n"


def test_the_card_of_an_export_is_of_its_rows(hub, folder, hbpack):
    options = ["--groups", "256", "--order", "packs", "--license", "no"]
    hbpack("export", "SET", "--to", "megatron", "--output", "MEGATRON", *options, "--push-to-hub", "some")
    head, text = card_of(hub, "user/some")
    assert head == {"license": "no", "tags": ["hbpack"], "viewer": False}
    listing = json.loads((folder / "MEGATRON/.hbpack-export.json").read_text())
    assert f"| packs | {listing['num_rows']} |" in text
    assert f"| samples | {listing['num_samples']} |" in text
    assert "| groups, CAPACITY:SP_DEGREE | 256:1 |" in text
    assert "hf download user/some --repo-type dataset" in text
    assert "in the order of the shards" in text
    assert "| padding ratio (PR) of the whole set |" in text


def test_the_card_says_how_a_folder_is_trained(hub, hbpack):
    hbpack("export", "OTHER", "--to", "ms-swift", "--output", "SWIFT", "--push-to-hub", "swift")
    head, text = card_of(hub, "user/swift")
    assert head["viewer"] is False
    assert "```bash\nhf download user/swift --repo-type dataset --local-dir DIR\n```" in text
    assert " Train with:\n\n```bash\nswift sft --cached_dataset DIR --truncation_strategy split " in text
    assert "pack them again" not in text


def test_nothing_is_exported_that_cannot_be_pushed(folder, hbpack):
    export = ["export", "SET", "--to", "trl", "--output", "NONE", "--push-to-hub"]
    for name, token, more, message in (
        ("a b", "hf_user", [], "'a b' is not a name of the Hub"),
        ("set", "hf_wrong", [], "Invalid user token"),
        ("set", "hf_user", ["--license", "a: b"], "--license: 'a: b' is not a licence of the Hub"),
    ):
        assert message in hbpack(*export, name, *more, token=token, code=1 if token == "hf_wrong" else 2).stderr
    assert not (folder / "NONE").exists()
    assert run(main, "write", folder / "OTHER", "--index-only").code == 0
    done = hbpack("export", "OTHER", "--push-to-hub", "index", code=2)
    assert "was written with --index-only, and nothing reads its token store from the Hub" in done.stderr


def test_a_damaged_set_is_not_pushed(hub, folder, hbpack):
    broken = shutil.copytree(folder / "SET", folder / "BROKEN", symlinks=True)
    shard = next((home(broken) / "validation").rglob("shard-*.arrow"))
    shard.write_bytes(shard.read_bytes()[:-1])
    done = hbpack("export", "BROKEN", "--push-to-hub", "broken", code=1)
    name = shard.relative_to(folder)
    assert done.stderr.startswith(f"error: '{name}': ")
    assert done.stderr.endswith("; hbpack verify BROKEN/validation says how to repair it\n")
    shard.unlink()
    assert f"error: '{name}': " in hbpack("export", "BROKEN", "--push-to-hub", "broken", code=1).stderr
    assert "user/broken" not in hub.commits


def test_who_is_not_known_is_told(hbpack):
    done = hbpack("export", "SET", "--push-to-hub", "set", token="hf_wrong", code=1)
    assert "set could not be pushed to the Hub (Invalid user token." in done.stderr
    done = hbpack("export", "SET", "--push-to-hub", "a b", code=2)
    assert done.stderr.startswith("error: --push-to-hub: 'a b' is not a name of the Hub: ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--to is required; to push the packed set itself, give --push-to-hub"),
        (["--to", "trl"], "--to needs --output"),
        (["--output", "X", "--push-to-hub", "n"], "--output needs --to"),
        (["--to", "trl", "--output", "X", "--private"], "--private and --license apply to a data set on the Hub"),
        (
            ["--to", "trl", "--output", "X", "--push-to-hub", "n", "--shard", "0/2"],
            "--push-to-hub does not run in a job array",
        ),
        (["--push-to-hub", "n", "--groups", "1k"], "--groups applies to an export: give --to, too"),
    ],
)
def test_options_that_do_not_go_together(folder, options, message):
    done = run(main, "export", folder / "SET", *options)
    assert done.code == 2
    assert message in done.stderr
