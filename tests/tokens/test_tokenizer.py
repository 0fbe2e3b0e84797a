"""Every form of a tokenizer loads with transformers' ids."""

import json
import pickle
import shutil
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest

from packer_cli.errors import TokenizerError
from packer_cli.format.tokens import TokenizerInfo
from packer_cli.tokens.tokenizer.loading import LoadedTokenizer
from tests.tokens.helpers import encoder_of

PROBES = ["Hello world, how are you?", " two  spaces\n\n", "naïve 你好 🙂", "<|im_start|>user\nhi<|im_end|>\n", ""]


def ids_of(tokenizer, text):
    return tokenizer.hf(text)["input_ids"]


@pytest.mark.parametrize("kind", ["bytes", "nfc", "bos", "metaspace"])
@pytest.mark.parametrize(
    "config",
    [
        {"eos_token": "<|im_end|>", "bos_token": "<s>", "tokenizer_class": "PreTrainedTokenizerFast"},
        {"eos_token": "<|im_end|>", "tokenizer_class": "TokenizersBackend", "add_bos_token": True},
        {"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>", "<new>"], "tokenizer_class": None},
        {},
    ],
)
def test_narrow_way_equals_auto_tokenizer(make_tokenizer_folder, kind, config):
    from transformers import AutoTokenizer

    folder = make_tokenizer_folder(kind, **config)
    ours, auto = LoadedTokenizer(str(folder)), AutoTokenizer.from_pretrained(str(folder))
    assert type(ours.hf) is type(auto)
    assert ours.hf.backend_tokenizer.to_str() == auto.backend_tokenizer.to_str()
    assert ours.special_tokens_map == auto.special_tokens_map
    assert ours.chat_template == auto.chat_template
    assert (ours.bos_token_id, ours.eos_token_id) == (auto.bos_token_id, auto.eos_token_id)
    for text in PROBES:
        assert ids_of(ours, text) == auto(text)["input_ids"]


def _described(hf):
    return hf.backend_tokenizer.to_str(), hf.added_tokens_decoder, hf.special_tokens_map, len(hf)


def test_the_added_tokens_are_those_that_transformers_finds(make_tokenizer_folder):
    from transformers import AutoTokenizer

    token = {"content": "<new>", "single_word": False, "lstrip": True, "rstrip": False, "normalized": False}
    forms = {
        None: {},
        "special_tokens_map.json": {"pad_token": token, "eos_token": "<|endoftext|>"},
        "added_tokens.json": {"<new>": 420},
    }
    configs = [{}, {"added_tokens_decoder": {"420": {**token, "special": True}}}]
    for name, content in forms.items():
        for config in configs:
            folder = make_tokenizer_folder("nfc", eos_token="<|im_end|>", **config)
            if name is not None:
                (folder / name).write_text(json.dumps(content))
            expected = _described(AutoTokenizer.from_pretrained(str(folder)))
            assert _described(LoadedTokenizer(str(folder)).hf) == expected
    versioned = make_tokenizer_folder("bytes", fast_tokenizer_files=["tokenizer.4.0.0.json"])
    shutil.copy(make_tokenizer_folder("bos") / "tokenizer.json", versioned / "tokenizer.4.0.0.json")
    assert _described(LoadedTokenizer(str(versioned)).hf) == _described(AutoTokenizer.from_pretrained(str(versioned)))


@pytest.mark.parametrize("name", ["minimind-chatml", "gpt-neox-20b"])
def test_shared_tokenizers_equal_auto_tokenizer(shared_data, name):
    from transformers import AutoTokenizer

    folder = str(shared_data / "tokenizers" / name)
    ours, auto = LoadedTokenizer(folder), AutoTokenizer.from_pretrained(folder)
    assert ours.hf.backend_tokenizer.to_str() == auto.backend_tokenizer.to_str()
    assert ours.chat_template == auto.chat_template
    assert ours.special_tokens_map == auto.special_tokens_map


def test_a_class_of_one_model_is_loaded_as_auto_tokenizer_does(make_tokenizer_folder):
    from transformers import AutoTokenizer

    folder = make_tokenizer_folder("bytes", tokenizer_class="GPT2Tokenizer", eos_token="<|im_end|>")
    ours, auto = LoadedTokenizer(str(folder)), AutoTokenizer.from_pretrained(str(folder))
    assert type(ours.hf).__name__ == type(auto).__name__ == "GPT2Tokenizer"
    assert [ids_of(ours, text) for text in PROBES] == [auto(text)["input_ids"] for text in PROBES]


def test_a_file_takes_its_siblings_along_under_any_name(make_tokenizer_folder, tmp_path):
    folder = make_tokenizer_folder("bytes", eos_token="<|im_end|>", chat_template="{{ messages }}")
    (folder / "chat_template.jinja").write_text("{{ messages[0] }}")
    expected = LoadedTokenizer(str(folder))
    assert expected.chat_template == "{{ messages[0] }}"
    assert LoadedTokenizer(str(folder / "tokenizer.json")).describe() == expected.describe()
    (folder / "tokenizer.json").rename(folder / "20B.json")
    assert LoadedTokenizer(str(folder / "20B.json")).describe() == expected.describe()
    (folder / "20B.json").rename(tmp_path / "alone.json")
    alone = LoadedTokenizer(str(tmp_path / "alone.json"))
    assert (alone.eos_token_id, alone.chat_template) == (None, None)
    assert ids_of(alone, "Hello") == ids_of(expected, "Hello")


def test_bos_and_eos_of_the_post_processor_are_found(load):
    loaded = load("bos")
    assert (loaded.prefix_ids, loaded.suffix_ids) == (
        (loaded.added_tokens["<s>"],),
        (loaded.added_tokens["</s>"],),
    )
    assert load("nfc").prefix_ids == load("nfc").suffix_ids == ()


SP_PROBES = ["Hello world", "how are you? fox", "naïve 🙂", "  two  spaces ", "a\nb", "ﬁ ｆｕｌｌ", "", " ", "x"]


@pytest.mark.parametrize(
    "options",
    [
        {"model_type": "bpe", "byte_fallback": True},
        {
            "model_type": "bpe",
            "byte_fallback": True,
            "remove_extra_whitespaces": False,
            "normalization_rule_name": "identity",
        },
        {
            "model_type": "bpe",
            "user_defined_symbols": ["<|im_start|>", "world"],
            "remove_extra_whitespaces": False,
            "add_dummy_prefix": False,
        },
        {"model_type": "bpe", "user_defined_symbols": ["wor"], "remove_extra_whitespaces": True},
        {"model_type": "unigram", "byte_fallback": True},
    ],
)
def test_sentencepiece_model_encodes_as_sentencepiece(tmp_path, options):
    import sentencepiece

    (tmp_path / "corpus.txt").write_text("Hello world, how are you?\nThe quick brown fox. 12 x\n" * 30)
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "corpus.txt"),
        model_prefix=str(tmp_path / "sp"),
        vocab_size=330,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "sp.model"))
    loaded = LoadedTokenizer(str(tmp_path / "sp.model"))
    probes = [text for text in SP_PROBES if "user_defined_symbols" not in options or not text.startswith(" ")]
    for text in probes:
        if options.get("user_defined_symbols") == ["wor"] and " wor" in text:
            continue  # the documented exception
        assert ids_of(loaded, text) == processor.encode(text), text
        assert ids_of(loaded, text + "<s>")[-1] == processor.bos_id()
    assert (loaded.bos_token_id, loaded.eos_token_id) == (processor.bos_id(), processor.eos_id())
    (tmp_path / "corpus.txt").unlink()
    assert LoadedTokenizer(str(tmp_path)).describe() == loaded.describe()
    from packer_cli.corpus.types import Document, DocumentBatch

    documents = DocumentBatch(documents=[Document("text", line, text=text) for line, text in enumerate(probes)])
    batch = encoder_of(loaded).encode(documents).samples
    expected = [ids_of(loaded, text) for text in probes if ids_of(loaded, text)]
    assert [row.tolist() for row in np.split(batch.input_ids, batch.offsets[1:-1])] == expected


def test_vocab_and_merges_are_gpt2(make_tokenizer_folder, tmp_path):
    from transformers import GPT2Tokenizer

    config = json.loads((make_tokenizer_folder("bytes") / "tokenizer.json").read_text())
    vocab = config["model"]["vocab"]
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text(
        "#version: 0.2\n" + "".join(" ".join(merge) + "\n" for merge in config["model"]["merges"])
    )
    loaded = LoadedTokenizer(str(tmp_path / "vocab.json"))
    reference = GPT2Tokenizer(vocab=str(tmp_path / "vocab.json"), merges=str(tmp_path / "merges.txt"))
    for text in [*PROBES[:3], "a<|endoftext|>b"]:
        assert ids_of(loaded, text) == reference(text)["input_ids"]
    assert loaded.eos_token_id == vocab["<|endoftext|>"]
    assert LoadedTokenizer(str(tmp_path)).describe() == loaded.describe()
    assert LoadedTokenizer(str(tmp_path / "merges.txt")).describe() == loaded.describe()


def test_describe_is_stable_and_knows_no_paths(make_tokenizer_folder, tmp_path):
    folder = make_tokenizer_folder("bytes", eos_token="<|im_end|>")
    first = LoadedTokenizer(str(folder), chat_template="{{ messages }}")
    shutil.copytree(folder, tmp_path / "copy")
    again = LoadedTokenizer(str(tmp_path / "copy"), chat_template="{{ messages }}")
    assert first.describe() == again.describe() == TokenizerInfo(**json.loads(json.dumps(asdict(first.describe()))))
    assert len(first.describe().fingerprint) == 32
    assert str(folder) not in json.dumps(asdict(first.describe()))
    other = LoadedTokenizer(str(folder), chat_template="{{ messages }}!")
    assert other.describe().fingerprint != first.describe().fingerprint
    assert other.describe().chat_template_fingerprint != first.describe().chat_template_fingerprint
    assert LoadedTokenizer(str(folder)).describe().chat_template_fingerprint is None
    assert pickle.loads(pickle.dumps(first)).describe() == first.describe()


def test_chat_template_is_text_or_a_file(make_tokenizer_folder, tmp_path):
    folder = str(make_tokenizer_folder("bytes", chat_template="own {{ messages }}"))
    file = tmp_path / "chat.jinja"
    file.write_text("from a file, no tags")
    assert LoadedTokenizer(folder).chat_template == "own {{ messages }}"
    assert LoadedTokenizer(folder, chat_template=str(file)).chat_template == "from a file, no tags"
    assert LoadedTokenizer(folder, chat_template="{{ 1 }}").chat_template == "{{ 1 }}"
    with pytest.raises(TokenizerError, match=r"nothing\.jinja'.*No such file.*give the path of a Jinja file"):
        LoadedTokenizer(folder, chat_template="nothing.jinja")


@pytest.mark.parametrize("given", ["", " \n"])
def test_an_empty_chat_template_is_none(make_tokenizer_folder, given):
    with pytest.raises(TokenizerError) as caught:
        LoadedTokenizer(str(make_tokenizer_folder("bytes")), chat_template=given)
    assert str(caught.value) == (
        f"chat template {given!r} is empty; give the path of a Jinja file, or Jinja text with {{% or {{{{ in it"
    )


def test_a_given_template_stands_in_for_a_wrong_one(make_tokenizer_folder):
    folder = make_tokenizer_folder("bytes", chat_template=5)
    assert LoadedTokenizer(str(folder), chat_template="{{ 1 }}").chat_template == "{{ 1 }}"


def test_several_templates(make_tokenizer_folder):
    templates = [{"name": "default", "template": "{{ 1 }}"}, {"name": "tool_use", "template": "{{ 2 }}"}]
    loaded = LoadedTokenizer(str(make_tokenizer_folder("bytes", chat_template=templates)))
    assert (loaded.chat_template, loaded.tool_template) == ("{{ 1 }}", "{{ 2 }}")


def test_importing_the_room_is_cheap():
    code = (
        "import sys, packer_cli.tokens.encode.encoder, packer_cli.tokens.tokenizer.loading\n"
        "print([name for name in ('transformers', 'numba', 'torch', 'gigatoken', 'jinja2') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_generic_tokenizer_needs_no_torch_and_prints_nothing(make_tokenizer_folder):
    folder = make_tokenizer_folder("bytes", eos_token="<|im_end|>")
    code = (
        "import sys\nfrom packer_cli.tokens.tokenizer.loading import LoadedTokenizer\n"
        f"LoadedTokenizer({str(folder)!r})\nassert 'torch' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == ("", "")
