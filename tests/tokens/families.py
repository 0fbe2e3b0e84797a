"""Tokenizers of the families that language models use, with their normalizers, splitters and kinds of added tokens.

`save_family(name, folder, texts)` trains one; a small vocabulary takes half a second.
"""

import json

CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
QWEN2 = CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    (
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
        " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
    ),
)
CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
BRACKETS = ["<unk>", "<s>", "</s>"]


def _template(open_turn, close_turn, before=""):
    """A chat template whose {% generation %} holds what the assistant says and its end of turn."""
    content = "{{ message['content'] }}"
    return (
        f"{before}{{% for message in messages %}}"
        f"{{% if message['role'] == 'assistant' %}}{open_turn.replace('ROLE', 'assistant')}"
        f"{{% generation %}}{content}{close_turn}{{% endgeneration %}}"
        f"{{% else %}}{open_turn.replace('ROLE', 'user')}{content}{close_turn}{{% endif %}}{{% endfor %}}"
    )


CHATML_TEMPLATE = _template("{{ '<|im_start|>ROLE\\n' }}", "{{ '<|im_end|>\\n' }}")
LLAMA2_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '<s>[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{% generation %}{{ ' ' + message['content'] + '</s>' }}{% endgeneration %}{% endif %}{% endfor %}"
)


def _byte_level(texts, vocab_size, splitter, *, specials=CHATML, normalizer=None, ignore_merges=False, trim=False):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    return tokenizer


def _split_bytes(pattern, behavior="isolated", *, invert=False):
    from tokenizers import Regex, pre_tokenizers

    splits = [pre_tokenizers.Split(Regex(one), behavior, invert) for one in pattern]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _sentencepiece(texts, vocab_size, *, normalizer=None, splitter=None, own=(), specials=BRACKETS):
    """BPE over characters with a byte fallback, as converted from a SentencePiece model."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, limit_alphabet=200, show_progress=False)
    trained.train_from_iterator(texts, trainer=trainer)
    model = json.loads(trained.to_str())["model"]
    spaces = ["\u2581" * count for count in range(2, 9)]
    pieces = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), *own, *model["vocab"], *spaces]
    vocab = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    merges = [tuple(pair) for pair in model["merges"]]
    merges += [("\u2581", "\u2581" * (count - 1)) for count in range(2, 9)]
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=True, unk_token=specials[0])
    )
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def _add(tokenizer, tokens, **options):
    from tokenizers import AddedToken

    added = [AddedToken(token, normalized=False, special=True, **options) for token in tokens]
    tokenizer.add_special_tokens(added)
    return tokenizer


def _bos(tokenizer, bos):
    from tokenizers import processors

    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )
    return tokenizer


def gpt2(texts, vocab_size):
    from tokenizers import pre_tokenizers

    return _byte_level(texts, vocab_size, pre_tokenizers.ByteLevel(add_prefix_space=False)), CHATML_TEMPLATE


def neox(texts, vocab_size):
    from tokenizers import AddedToken, normalizers, pre_tokenizers

    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = _byte_level(texts, vocab_size, splitter, normalizer=normalizers.NFC(), trim=True)
    tokenizer.add_tokens([AddedToken(" " * count, normalized=True) for count in range(24, 1, -1)])
    return tokenizer, CHATML_TEMPLATE


def cl100k(texts, vocab_size):
    splitter = _split_bytes([CL100K], "removed", invert=True)
    return _byte_level(texts, vocab_size, splitter), CHATML_TEMPLATE


def o200k(texts, vocab_size):
    return _byte_level(texts, vocab_size, _split_bytes([O200K], "removed", invert=True)), CHATML_TEMPLATE


def llama3(texts, vocab_size):
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer = _byte_level(texts, vocab_size, _split_bytes([CL100K]), specials=names, ignore_merges=True, trim=True)
    turn = "{{ '<|start_header_id|>ROLE<|end_header_id|>\\n\\n' }}"
    return _bos(tokenizer, names[0]), _template(turn, "{{ '<|eot_id|>' }}", "{{ '<|begin_of_text|>' }}")


def qwen2(texts, vocab_size):
    from tokenizers import normalizers

    splitter = _split_bytes([QWEN2])
    return _byte_level(texts, vocab_size, splitter, normalizer=normalizers.NFC()), CHATML_TEMPLATE


def deepseek(texts, vocab_size):
    from tokenizers import AddedToken, normalizers

    tokenizer = _byte_level(
        texts,
        vocab_size,
        _split_bytes(DEEPSEEK),
        specials=["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"],
        normalizer=normalizers.Sequence([]),
    )
    tokenizer.add_tokens(
        [AddedToken(token, normalized=True) for token in ("<｜User｜>", "<｜Assistant｜>", "<think>")]
    )
    turn = "{{ '<｜User｜>' if 'ROLE' == 'user' else '<｜Assistant｜>' }}"
    return tokenizer, _template(turn, "{{ '<｜end▁of▁sentence｜>' }}", "{{ '<｜begin▁of▁sentence｜>' }}")


def roberta(texts, vocab_size):
    from tokenizers import pre_tokenizers

    splitter = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer = _byte_level(texts, vocab_size, splitter, specials=["<s>", "</s>", "<unk>"])
    return _add(tokenizer, ["<mask>"], lstrip=True), LLAMA2_TEMPLATE.replace("</s>", "</s> <mask>")


def llama2(texts, vocab_size):
    from tokenizers import normalizers

    steps = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    tokenizer = _sentencepiece(texts, vocab_size, normalizer=normalizers.Sequence(steps))
    return _bos(_add(tokenizer, BRACKETS), "<s>"), LLAMA2_TEMPLATE


def llama1(texts, vocab_size):
    """As first converted: special tokens are looked for after normalizing."""
    tokenizer, template = llama2(texts, vocab_size)
    config = json.loads(tokenizer.to_str())
    for token in config["added_tokens"]:
        token["normalized"] = True
    return type(tokenizer).from_str(json.dumps(config)), template


def mistral(texts, vocab_size):
    from tokenizers import pre_tokenizers

    splitter = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer = _sentencepiece(texts, vocab_size, splitter=splitter)
    return _bos(_add(tokenizer, [*BRACKETS, "[INST]", "[/INST]"]), "<s>"), LLAMA2_TEMPLATE


def metaspace(texts, vocab_size):
    from tokenizers import pre_tokenizers

    splitter = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    return _add(_sentencepiece(texts, vocab_size, splitter=splitter), BRACKETS), LLAMA2_TEMPLATE


def phi3(texts, vocab_size):
    tokenizer, _ = llama2(texts, vocab_size)
    _add(tokenizer, ["<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"], rstrip=True)
    return tokenizer, _template("{{ '<|ROLE|>\\n' }}", "{{ '<|end|>\\n' }}")


def gemma(texts, vocab_size):
    from tokenizers import AddedToken, normalizers, pre_tokenizers

    names = ["<unk>", "<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"]
    own = ["\n", "\n\n", "\n\n\n", "\t", "\t\t"]
    tokenizer = _sentencepiece(
        texts,
        vocab_size,
        normalizer=normalizers.Replace(" ", "\u2581"),
        splitter=pre_tokenizers.Split(" ", "merged_with_previous"),
        own=own,
        specials=names,
    )
    _add(tokenizer, names)
    marks = ["\u2581" * count for count in range(2, 9)]
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in [*own[1:], *marks]])
    turn = "{{ '<start_of_turn>ROLE\\n' }}"
    return _bos(tokenizer, "<bos>"), _template(turn, "{{ '<end_of_turn>\\n' }}", "{{ '<bos>' }}")


def t5(texts, vocab_size):
    """Unigram with a charsmap, which gigatoken does not load."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), "\u2581")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=["<pad>", "</s>", "<unk>", "<s>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    return tokenizer, LLAMA2_TEMPLATE


def bert(texts, vocab_size):
    """WordPiece, which gigatoken does not load."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "<s>", "</s>"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=names, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer=trainer)
    return tokenizer, LLAMA2_TEMPLATE


FAMILIES = {
    function.__name__: function
    for function in (
        gpt2, neox, cl100k, o200k, llama3, qwen2, deepseek, roberta,
        llama1, llama2, mistral, metaspace, phi3, gemma, t5, bert,
    )
}  # fmt: skip
"""Name -> (texts, vocabulary size) -> tokenizer and chat template."""
BY_TOKENIZERS = frozenset({"t5", "bert"})
"""Those that gigatoken does not load."""


def save_family(name, folder, texts, vocab_size=1500):
    """Make a family's tokenizer as a folder that transformers loads."""
    tokenizer, template = FAMILIES[name](texts, vocab_size)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
