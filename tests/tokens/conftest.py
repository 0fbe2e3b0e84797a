"""Small tokenizers made on the spot, and the shared ones where there are."""

import json

import pytest

CORPUS = [
    "The quick brown fox jumps over the lazy dog. " * 3,
    "user assistant system hello world, how are you? I am fine. Thanks!\n\n" * 3,
    "naïve café, straße, 你好世界, 🙂 emoji, 12345 67.8% <think> </think>\n" * 3,
    "Ask one. Say one. Ask two. Say two. Be brief. tool call response name arguments\n" * 3,
]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>"]


def train_byte_level(*, vocab_size=420, normalizer=None, trim=False):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if trim:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer=trainer)
    return tokenizer


def save(folder, tokenizer, **config):
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    if config:
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def make_tokenizer_folder(tmp_path_factory):
    """make(name, kind, **config) -> folder; kinds: bytes, nfc, bos, metaspace."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    def make(kind, **config):
        folder = tmp_path_factory.mktemp(kind)
        if kind == "bytes":
            tokenizer = train_byte_level()
        elif kind == "nfc":
            tokenizer = train_byte_level(normalizer=normalizers.NFC(), trim=True)
        elif kind == "bos":
            tokenizer = train_byte_level()
            pairs = [(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")]
            tokenizer.post_processor = processors.TemplateProcessing(
                single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=pairs
            )
        else:
            tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
            tokenizer.decoder = decoders.Metaspace()
            fallback = [f"<0x{byte:02X}>" for byte in range(256)]
            trainer = trainers.BpeTrainer(
                vocab_size=600, special_tokens=["<unk>", *SPECIALS, *fallback], show_progress=False
            )
            tokenizer.train_from_iterator(CORPUS, trainer=trainer)
        return save(folder, tokenizer, **config)

    return make


CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CHATML_GENERATION = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}"
    "{% else %}{% set loop_messages = messages %}{% set system = '' %}{% endif %}"
    "{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate user/assistant') }}{% endif %}"
    "{% set content = system + message['content'] if loop.index0 == 0 else message['content'] %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
LLAMA2_GENERATION = LLAMA2.replace(
    "{{ ' ' + content.strip() + ' ' + eos_token }}",
    "{% generation %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endgeneration %}",
)
QWEN3 = (
    "{%- set ns = namespace(last=0) -%}"
    "{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}"
    "{%- for message in messages -%}"
    "{%- set content = message.content if message.content is string else '' -%}"
    "{%- if message.role == 'assistant' -%}"
    "{%- set thinking = message.reasoning_content if message.reasoning_content is string else '' -%}"
    "{%- if '</think>' in content -%}"
    "{%- set thinking = content.split('</think>')[0].split('<think>')[-1].strip('\\n') -%}"
    "{%- set content = content.split('</think>')[-1].lstrip('\\n') -%}{%- endif -%}"
    "{{- '<|im_start|>assistant\\n' -}}OPEN"
    "{%- if loop.index0 > ns.last and thinking -%}{{- '<think>\\n' + thinking + '\\n</think>\\n\\n' -}}{%- endif -%}"
    "{{- content -}}"
    "{%- if message.tool_calls -%}{%- for call in message.tool_calls -%}"
    "{{- '\\n<tool_call>\\n' -}}{{- call.function.name -}}{{- call.function.arguments | tojson -}}"
    "{{- '\\n</tool_call>' -}}{%- endfor -%}{%- endif -%}"
    "{{- '<|im_end|>' -}}CLOSE{{- '\\n' -}}"
    "{%- else -%}{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' -}}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
MACRO = (
    "{% macro turn(message) %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endmacro %}"
    "{% macro all(list) %}{% for message in list %}{{ turn(message) }}{% endfor %}{% endmacro %}{{ all(messages) }}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LOOP_CONTROLS = (
    "{% for message in messages %}{% if message.role == 'system' %}{% continue %}{% endif %}"
    "{{ '<|im_start|>' ~ message.role ~ '\\n' }}{% if message.content == '' %}{{ '<|im_end|>\\n' }}"
    "{% continue %}{% endif %}"
    "{% for part in message.content.split('\\n') %}{% if part == 'STOP' %}{% break %}{% endif %}"
    "{{ part + '\\n' }}{% endfor %}"
    "{{ '<|im_end|>' }}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
EOS_BETWEEN = (
    "{% for message in messages %}{% if not loop.first and message.role == 'user' %}{{ eos_token }}{% endif %}"
    "{% if message.role == 'user' %}{{ 'USER: ' + message.content + ' ASSISTANT:' }}"
    "{% else %}{{ ' ' + message.content }}{% endif %}{% endfor %}"
    "{% if messages[-1].role == 'assistant' %}{{ eos_token }}{% endif %}"
)
TEMPLATES = {
    "chatml": CHATML,
    "chatml-generation": CHATML_GENERATION,
    "llama2": LLAMA2,
    "llama2-generation": LLAMA2_GENERATION,
    "qwen3": QWEN3.replace("OPEN", "").replace("CLOSE", ""),
    "qwen3-generation": QWEN3.replace("OPEN", "{%- generation -%}").replace("CLOSE", "{%- endgeneration -%}"),
    "macro": MACRO,
    "loop-controls": LOOP_CONTROLS,
    "eos-between": EOS_BETWEEN,
}


@pytest.fixture(scope="session")
def templates():
    return TEMPLATES


CONFIG = {"bos_token": "<s>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}


@pytest.fixture(scope="session")
def load(make_tokenizer_folder):
    """load(kind, template name or None) -> LoadedTokenizer; the same one for the same arguments."""
    from packer_cli.tokens.tokenizer.loading import LoadedTokenizer

    folders = {}
    loaded = {}

    def get(kind, template=None, **config):
        key = (kind, template, tuple(config.items()))
        if key not in loaded:
            names = (kind, tuple(config.items()))
            if names not in folders:
                folders[names] = make_tokenizer_folder(kind, **{**CONFIG, **config})
            loaded[key] = LoadedTokenizer(
                str(folders[names]), chat_template=TEMPLATES.get(template, template) if template else None
            )
        return loaded[key]

    return get


@pytest.fixture(scope="session")
def minimind(shared_data):
    from packer_cli.tokens.tokenizer.loading import LoadedTokenizer

    return LoadedTokenizer(str(shared_data / "tokenizers" / "minimind-chatml"))


@pytest.fixture(scope="session")
def neox(shared_data):
    from packer_cli.tokens.tokenizer.loading import LoadedTokenizer

    return LoadedTokenizer(str(shared_data / "tokenizers" / "gpt-neox-20b"))


@pytest.fixture(scope="session")
def real_chats(shared_data):
    with open(shared_data / "sft_messages.jsonl", encoding="utf-8") as file:
        return [json.loads(line)["messages"] for _, line in zip(range(300), file, strict=False)]
