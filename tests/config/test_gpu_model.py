"""The files that `--model` and `--profile` name: read, and refused in words."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from packer_cli.config.gpu_model import read_profile, read_shape
from packer_cli.cost.shape import shape_of
from packer_cli.errors import InputError

CONFIG = {
    "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 96,
}  # fmt: skip


def test_a_config_or_its_folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert read_shape(tmp_path) == read_shape(tmp_path / "config.json") == shape_of(CONFIG)


GIVE = "give a model's config.json (Hugging Face), or the folder that holds it"
CORRECT = "correct it, or give another model"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{",
            f" is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1); {GIVE}",
        ),
        ("[]", f" is not a JSON object; {GIVE}"),
        (
            json.dumps({**CONFIG, "hidden_size": None}),
            f": the key 'hidden_size' (or n_embd, d_model) is missing: the model type is not supported; {CORRECT}",
        ),
        *(
            (json.dumps({**CONFIG, **change}), f": {rule}; {CORRECT}")
            for change, rule in (
                ({"vocab_size": "many"}, "vocab_size must be an integer, got 'many'"),
                (
                    {"num_attention_heads": 3},
                    "hidden_size, 64, is not a multiple of num_attention_heads, 3, and there is no head_dim",
                ),
                (
                    {"num_local_experts": 4, "num_experts_per_tok": 9},
                    "experts_per_token must be from 1 to num_experts, 4, got 9",
                ),
                (
                    {"num_local_experts": 4, "num_experts_per_tok": 2, "moe_layer_freq": 0},
                    "moe_layer_freq and decoder_sparse_step must be at least 1",
                ),
            )
        ),
    ],
)  # fmt: skip
def test_a_config_that_is_wrong(tmp_path, text, message):
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(InputError) as error:
        read_shape(file)
    assert str(error.value) == f"{str(file)!r}{message}"


def test_no_config(tmp_path):
    with pytest.raises(InputError) as error:
        read_shape(tmp_path)
    assert str(error.value) == f"{str(tmp_path / 'config.json')!r}: No such file or directory; {GIVE}"


def test_a_profile_that_is_wrong(tmp_path):
    file = tmp_path / "p.json"
    with pytest.raises(InputError) as error:
        read_profile(file)
    assert str(error.value) == f"{str(file)!r}: No such file or directory; make a profile with hbpack profile"
    table = Path(__file__).parent.parent / "groups" / "data" / "hbp-table-4.json"
    file.write_text(re.sub('"num_gpus": *[0-9]+', '"num_gpus": 0', table.read_text()))
    with pytest.raises(InputError) as error:
        read_profile(file)
    assert str(error.value) == (
        f"{str(file)!r} is not a profile: num_gpus: Input should be greater than or equal to 1; "
        "make one with hbpack profile"
    )
