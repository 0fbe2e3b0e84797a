"""An Axolotl config becomes a draft, with a reason for all that is lost."""

from __future__ import annotations

import pytest
import yaml

from packer_cli.errors import InputError
from packer_cli.init.trainers import _SAME_TEMPLATES, PLUGIN, plugin_lines, read_axolotl
from packer_cli.tokens.tokenizer.loading import NAMED


def read(text, num_gpus=8):
    return read_axolotl(yaml.safe_load(text), num_gpus)


def test_a_usual_config(tmp_path):
    file = tmp_path / "chats.jsonl"
    file.write_text("{}\n")
    draft = read(
        f"""
        base_model: meta-llama/Llama-3.1-8B
        datasets:
          - path: {file}
            type: chat_template
          - path: json
            data_files: [a.jsonl, b.jsonl]
            type: sharegpt
            message_property_mappings: {{role: from, content: value}}
            field_messages: conversations
          - path: owner/name
            name: sub
            split: train
            type: chat_template
        chat_template: tokenizer_default
        sequence_len: 4096
        micro_batch_size: 2
        gradient_accumulation_steps: 4
        num_epochs: 3
        seed: 42
        """
    )
    assert draft.inputs == [str(file), "a.jsonl", "b.jsonl", "owner/name/sub:train"]
    assert draft.options == {
        "schema": "messages",
        "tokenizer": "meta-llama/Llama-3.1-8B",
        "groups": ["4k:1"],
        "overflow": "drop",
        "global-tokens": "256k",
        "epochs": 3,
        "seed": 42,
    }
    assert draft.lost == []


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        (
            "type: input_output",
            "data set d: type input_output is not read; convert it to messages or prompt and completion",
        ),
        (
            "type: chat_template\n    field_messages: dialog",
            'data set d: messages are in dialog: hbpack reads "messages" or "conversations"; rename it',
        ),
        (
            "type: chat_template\n    message_property_mappings: {role: who, content: said}",
            "data set d: messages have who and said: hbpack reads role and content, or from and value",
        ),
        ("type: completion\n    field: body", 'data set d: field body: hbpack reads "text" or "content"; rename it'),
        (
            "type: {system_prompt: x}",
            "data set d: type a custom type is not read; convert it to messages or prompt and completion",
        ),
    ],
)
def test_a_data_set_that_cannot_be_read(text, lost):
    draft = read(f"datasets:\n  - path: d\n    {text}\n  - path: e\n    type: alpaca\n")
    assert draft.lost == [lost]
    assert draft.inputs == ["e"]
    assert draft.options == {"schema": "alpaca", "alpaca": "stanford"}


def test_what_has_no_place_is_named():
    draft = read(
        "datasets: [{path: d, type: alpaca}]\nval_set_size: 0.1\nchat_template: phi_3\nsample_packing: false\n"
        "excess_length_strategy: truncate\nsequence_len: 5000\nsequence_parallel_degree: 2\ntrain_on_inputs: true\n"
        "num_epochs: 1.5\n"
    )
    assert [text.split(":")[0] for text in draft.lost] == [
        "chat_template phi_3", "sample_packing", "num_epochs",
    ]  # fmt: skip
    assert draft.options == {
        "schema": "alpaca", "alpaca": "stanford", "loss-on": "all", "groups": ["5000:2"], "overflow": "truncate",
        "validation": "10%",
    }  # fmt: skip


@pytest.mark.parametrize(("size", "wanted"), [("0.05", "5%"), ("0.0015", "0.15%"), ("500", 500), ("0", None)])
def test_val_set_size(size, wanted):
    assert read(f"datasets: [{{path: d}}]\nval_set_size: {size}\n").options.get("validation") == wanted


@pytest.mark.parametrize("degree", ["context_parallel: {size: 4, backend: ring}", "context_parallel_size: 4"])
def test_gpus_that_share_a_row(degree):
    assert read(f"datasets: [{{path: d}}]\nsequence_len: 8192\n{degree}\n").options["groups"] == ["8k:4"]


@pytest.mark.parametrize("before", ["", "a.APlugin", f"a.APlugin, {PLUGIN}"])
def test_the_plugin_joins_those_that_are_there(before):
    config = yaml.safe_load(f"plugins: [{before}]\n")
    lines = yaml.safe_load("\n".join(plugin_lines(config, "packed")))
    assert lines == {"plugins": [*(["a.APlugin"] if before else []), PLUGIN], "hbpack": "packed"}


def test_numbers_that_are_none():
    draft = read(
        "datasets: [{path: d, type: completion}]\nsequence_len: 4096\nsequence_parallel_degree: '2'\n"
        "micro_batch_size: 1\ngradient_accumulation_steps: 2\nnum_epochs: .inf\nseed: .nan\n"
    )
    assert draft.lost == ["num_epochs: inf: epochs takes an integer", "seed: nan: seed takes an integer"]
    assert draft.options["groups"] == ["4k:1"]


def test_no_data_sets():
    with pytest.raises(InputError) as error:
        read("base_model: x")
    assert str(error.value) == (
        "--from: the config lists no datasets, as Axolotl's do, and no dataset, as LLaMA-Factory's do; add some, or "
        "name DATA without --from"
    )


@pytest.mark.parametrize(
    ("sets", "strategy", "overflow", "reason"),
    [
        ("datasets: [{path: d, type: completion}]", "drop", "split", "Axolotl cuts longer texts into rows, too."),
        ("pretraining_dataset: {path: d, type: pretrain}", "truncate", "split", "Axolotl cuts longer texts into rows"),
        (
            "datasets: [{path: d, type: completion}, {path: e, type: alpaca}]", "truncate", "split",
            "Axolotl cuts longer texts into rows, too. Of the other data sets, it would truncate longer samples.",
        ),
        ("datasets: [{path: d, type: alpaca}]", "null", "drop", "Axolotl would drop longer samples, too."),
    ],
)  # fmt: skip
def test_what_becomes_of_longer_samples(sets, strategy, overflow, reason):
    """Axolotl cuts texts of completion and pretraining sets into rows before it looks at `excess_length_strategy`."""
    draft = read(f"{sets}\nsequence_len: 2048\nexcess_length_strategy: {strategy}\n")
    assert draft.options["overflow"] == overflow
    assert draft.reasons["overflow"].startswith(reason)


@pytest.mark.parametrize(
    ("name", "wanted", "num_lost"),
    [
        ("chatml", "chatml", 0), ("gemma3", "gemma3", 0), ("phi_3", None, 1),
        ("tokenizer_default_fallback_chatml", None, 0), ("tokenizer_default", None, 0),
    ],
)  # fmt: skip
def test_chat_templates_by_name(name, wanted, num_lost):
    draft = read(f"datasets: [{{path: d, type: chat_template}}]\nchat_template: {name}\n")
    assert draft.options.get("chat-template") == wanted
    assert len(draft.lost) == num_lost
    assert set(_SAME_TEMPLATES) <= set(NAMED)
