"""`--config FILE.yaml`: any option of the command, by its long name; the command line wins."""

from __future__ import annotations

import json

import pytest

from packer_cli.cli.main import cli
from packer_cli.config.messages import load_config_file
from tests.cli.conftest import GROUPS
from tests.cli.test_simulate import CONFIG as MODEL

OPTIONS = (
    "align, allow-skipped, alpaca, append-eos, assume, balance, chat-template, cost, cp-sharding, curriculum-steps, "
    "date, dedup, dry-run, engine, eos-token, epochs, exclude, fill, global-tokens, gpu, gpus, group-algorithm, "
    "groups, "
    "index-only, inputs, items, json, keep, keep-columns, keep-tokens, lockstep, log-format, loss-on, mask, "
    "max-groups, max-length, "
    "max-path-tokens, max-record-bytes, max-rejected, max-samples, model, output, overflow, packing, parallel, "
    "plain-content, profile, recheck, schema, seed, shard-size, share-prefixes, step-mix, strategy, strict, "
    "tokenizer, "
    "tokenizer-backend, trainer, turns, validation, wait, workers"
)

BAD_OVERFLOW = (
    "invalid value for '--overflow': 'spill' is not one of 'split', 'truncate', 'drop', 'error'; "
    "see hbpack pack --help"
)


BAD_EOS = "invalid value for '--append-eos': 'maybe' is not one of 'auto', 'always', 'never'; see hbpack pack --help"


@pytest.fixture
def config(tmp_path):
    def make(text):
        path = tmp_path / "config.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return make


@pytest.fixture
def configured(hbpack, config, chats, tokenizer, tmp_path):
    """`hbpack pack --config` with a file that holds the usual options and this text."""

    def call(text, *arguments):
        usual = f"inputs: [{chats}]\noutput: {tmp_path}/out\ntokenizer: {tokenizer}\nworkers: 1\n"
        return hbpack("pack", "--config", config(usual + text), *arguments)

    return call


def written(tmp_path):
    return json.loads((tmp_path / "out" / "hbpack.json").read_text())["config"]["plan"]


@pytest.mark.parametrize(
    "groups",
    [
        "[1k:1, 8k:4]",
        "1k:1,8k:4",
        "[1024:1, 8192:4]",  # YAML 1.1 reads these as times of day.
        "[{capacity: 1k}, {capacity: 8192, sp_size: 4}]",
    ],
)
def test_groups_in_every_way(configured, tmp_path, groups):
    assert configured(f"groups: {groups}\ngpus: 8\n").code == 0
    assert [(group["capacity"], group["sp_size"]) for group in written(tmp_path)["groups"]] == [(1024, 1), (8192, 4)]


def test_every_kind_of_value(configured, tmp_path):
    text = (
        "groups: 8192\ngpus: 4\npacking: bfd\noverflow: drop\nglobal-tokens: 4k\ncurriculum_steps: 1\nepochs: 2\n"
        "seed: 3\nshard-size: 1MiB\nkeep-tokens: false\nmax-rejected: 0\nschema: messages\nloss_on: all\n"
        "tokenizer-backend: tokenizers\nplain-content: true\nchat-template: null\ndry-run: false\n"
    )
    assert configured(text).code == 0
    plan = written(tmp_path)
    assert (plan["packing"], plan["global_tokens"], plan["epochs"], plan["seed"]) == ("bfd", 4096, 2, 3)
    assert not (tmp_path / "out" / "tokens").exists()


def test_the_command_line_wins(configured, tmp_path, chats):
    assert configured("groups: 8k\ngpus: 8\nseed: 5\n", "--gpus", 4, "--seed", 6).code == 0
    assert (written(tmp_path)["gpus"], written(tmp_path)["seed"]) == (4, 6)


GROUP_HAS = "a group has capacity, sp_size, checkpoint_layers, align, cp_size, tp_size, pp_size, vpp_size"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bogus: 1", f"config file '{{}}': pack has no option 'bogus'; it has {OPTIONS}"),
        ("los-on: all", "config file '{}': pack has no option 'los-on' (did you mean 'loss-on'?)"),
        ("config: x", f"config file '{{}}': pack has no option 'config'; it has {OPTIONS}"),
        ("gpus: 8\ngpus: 4", "config file '{}' gives 'gpus' twice; keep one of them"),
        ("append-eos: true\nappend_eos: true", "config file '{}' gives 'append_eos' twice; keep one of them"),
        ("append-eos: true", "config file '{}': append-eos must be one of auto, always, never, got true"),
        ("append-eos: maybe", BAD_EOS),
        ("plain-content: maybe", "config file '{}': plain-content must be true or false, got 'maybe'"),
        ("plain_content: 1", "config file '{}': plain-content must be true or false, got 1"),
        ('output: "a\\0b"', "config file '{}' holds 'a\\x00b'; no option takes such a character, so remove it"),
        ('model: "\\udc41"', "config file '{}' holds '\\udc41'; no option takes such a character, so remove it"),
        ("groups: &a [*a]\ngpus: 1", "--groups must be a mapping, got [[[[...]]]]"),
        ("groups: 1k\ngpus: 1\nworkers: 9999999999", "--workers must be at most 4096, got 9999999999"),
        ("seed: true", "config file '{}': seed takes a value, not true or false, got true"),
        ("groups: 1k\ngpus: 1\nseed: 1.5", "--seed must be an integer, got 1.5"),
        ("groups: 1k\ngpus: 1\nseed: [1]", "--seed must be an integer, got [1]"),
        ("groups: 1k\ngpus: 1\npacking: {isf: 1}", "--packing must be text, got {{'isf': 1}}"),
        ("groups: [{sp_size: 1}]\ngpus: 1", "--groups: capacity is required"),
        ("groups: [{capacity: 1k, sp: 1}]\ngpus: 1", f"--groups: unknown key 'sp'; {GROUP_HAS}"),
        (
            "groups: [{capacity: 1k, sp_sise: 1}]\ngpus: 1",
            f"--groups: unknown key 'sp_sise' (did you mean 'sp_size'?); {GROUP_HAS}",
        ),
        ("groups: []\ngpus: 1", "--groups is required"),
        ("groups: 1k\ngpus: null", "--gpus is required"),
        (
            "overflow: spill",
            BAD_OVERFLOW,
        ),
        ("- a", "config file '{}' must map option names to values; write lines such as gpus: 8"),
        ("1: 2", "config file '{}' must map option names to values; write lines such as gpus: 8"),
    ],
)
def test_a_wrong_file(hbpack, config, chats, tokenizer, tmp_path, text, message):
    path = config(text)
    done = hbpack("pack", chats, "--tokenizer", tokenizer, "--output", tmp_path / "out", "--config", path)
    assert done == (2, "", f"error: {message.format(path)}\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["a: [", b"\xff\xfe\0", '!!python/object/apply:os.system ["true"]', "a: \t: b"])
def test_a_file_that_is_not_yaml(hbpack, config, text):
    path = config(text)
    done = hbpack("pack", "--config", path)
    assert done.code == 2
    assert done.stderr.startswith(f"error: config file '{path}' is not YAML: ")
    assert done.stderr.count("\n") == 1


def test_a_file_that_cannot_be_read(hbpack, tmp_path):
    done = hbpack("pack", "--config", tmp_path / "none.yaml")
    assert done == (
        2,
        "",
        f"error: config file '{tmp_path}/none.yaml' cannot be read: No such file or directory; name a YAML file\n",
    )
    assert hbpack("pack", "--config", tmp_path).code == 2


@pytest.mark.parametrize(("value", "shown"), [("5", "5"), ("{a: b}", "{'a': 'b'}"), ("[1, 2]", "[1, 2]")])
def test_inputs_are_paths(hbpack, config, tmp_path, value, shown):
    path = config(f"inputs: {value}")
    done = hbpack("pack", "-o", tmp_path / "out", "--config", path)
    message = f"error: config file '{path}': inputs must be a path or a list of paths, got {shown}\n"
    assert done == (2, "", message)


def test_the_other_commands_take_files_too(hbpack, pack, config, chats, tmp_path):
    assert pack(chats).code == 0
    out = tmp_path / "out"
    assert hbpack("plan", "--config", config(f"store: {out}\ngroups: 2k\ngpus: 2\n")).code == 0
    assert hbpack("write", "--config", config(f"folder: {out}\nworkers: 1\n")).code == 0
    done = hbpack("stats", "--config", config(f"path: {out}\njson: true\n"))
    assert json.loads(done.stdout)["groups"][0]["name"] == "g0-2048-sp1"
    done = hbpack("plan", out, *GROUPS, "--config", config("tokeniser: x"))
    assert done.stderr.startswith(
        f"error: config file '{tmp_path}/config.yaml': plan has no option 'tokeniser'; it has "
    )


@pytest.mark.usefixtures("rows_of_this_process")
@pytest.mark.parametrize(
    "groups",
    [
        "[{capacity: 1k}, {capacity: 8k, sp_size: 4}]",
        *(pytest.param(text, marks=pytest.mark.slow) for text in ("1k:1,8k:4", "[1k:1, 8k:4]")),
    ],
)
def test_one_file_serves_all_commands(hbpack, config, chats, tokenizer, tmp_path, groups):
    (tmp_path / "model.json").write_text(json.dumps(MODEL))
    path = config(
        f"inputs: [{chats}]\noutput: {tmp_path}/out\ntokenizer: {tokenizer}\nworkers: 1\ngroups: {groups}\n"
        f"gpus: 8\npacking: bfd\nbalance: sort\noverflow: drop\nglobal-tokens: 8k\nseed: 3\nepochs: 2\n"
        f"model: {tmp_path}/model.json\ngpu: h100\nappend-eos: auto\nshard-size: 64MiB\nkeep-tokens: true\n"
        "to: trl\nstrategies: naive\n"
    )
    out = tmp_path / "out"
    for words in (
        ["pack"],
        ["tokenize", "--output", tmp_path / "tokens"],
        ["plan", out],
        ["write", out],
        ["status", out],
        ["verify", out],
        ["groups"],
        ["compare"],
        ["simulate"],
        ["stats", out],
        ["report", out, "--output", tmp_path / "page.html"],
        ["export", out, "--output", tmp_path / "exported"],
    ):
        done = hbpack(*words, "--config", path)
        assert done.code == 0, (words, done.stderr)
    assert written(tmp_path)["packing"] == "bfd"
    done = hbpack("groups", "--config", path, "--global-tokens", "8k")
    assert done.stderr.startswith("error: --global-tokens has no effect on hbpack groups")


def test_numbers_are_decimal(config):
    loaded = load_config_file(str(config("a: 010\nb: 60:30\nc: -5\nd: 0\ne: 1e3\nf: 0x1f\n")))
    assert loaded == {"a": "010", "b": "60:30", "c": -5, "d": 0, "e": "1e3", "f": "0x1f"}


def test_every_option_of_every_command_can_stand_in_a_file():
    from packer_cli.cli.main import COMMANDS
    from packer_cli.cli.options import _config_names

    for name in COMMANDS:
        command = cli.get_command(None, name)
        names = [
            _config_names(parameter)[0]
            for parameter in command.params
            if parameter.name not in ("config", "help_all", "lists")
        ]
        assert len(set(names)) == len(names)
