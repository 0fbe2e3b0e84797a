"""Make the bundled sample corpus and its tokenizer: `examples/sample`. The same bytes every time.

Everything is generated here: short chats about arithmetic and timetables, long made-up travel journals, a tiny
byte-level BPE trained on them, with a chat template, and the shape of an 8B model, for predictions.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

OUTPUT = Path(__file__).parent.parent / "examples" / "sample"

TEMPLATE = """\
{%- for message in messages %}
{{- '<|start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' %}
{%- generation %}{{ message.content + '<|end|>' }}{% endgeneration %}
{{- '\\n' }}
{%- else %}
{{- message.content + '<|end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start|>assistant\\n' }}
{%- endif %}
"""

NAMES = ["Ada", "Boris", "Chloé", "Dmitri", "Elif", "Farah", "Goran", "Hana", "Ines", "Jun"]
THINGS = ["apples", "pencils", "tickets", "seashells", "bolts", "stamps", "lanterns", "marbles"]
PLACES = ["Aldmoor", "Brightwater", "Cairn Hill", "Dunmere", "Eastfold", "Fernleigh", "Gullhaven", "Highcombe"]
WEATHER = ["rain", "a thin fog", "clear frost", "warm wind", "heavy cloud", "sun", "a storm from the west"]
DEEDS = [
    "we mended the cart",
    "the river was too high to cross",
    "an old woman sold us bread",
    "we counted the bells of the abbey",
    "nobody had heard of the road we asked for",
    "the map turned out to be upside down",
    "a dog followed us until dusk",
    "we traded two lanterns for a mule",
    "the innkeeper sang all night",
    "we found a shorter way over the ridge",
]

MODEL = {
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
"""The shape of Llama 3.1 8B."""


def arithmetic(rng: random.Random) -> list[dict[str, str]]:
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    have, more, share = rng.randint(2, 90), rng.randint(2, 60), rng.randint(2, 6)
    total = have + more
    turns = [
        ("user", f"{name} has {have} {thing} and gets {more} more. How many {thing} does {name} have now?"),
        ("assistant", f"{have} + {more} = {total}. {name} has {total} {thing}."),
    ]
    for _ in range(rng.randint(0, 3)):
        share = rng.randint(2, 6)
        turns += [
            ("user", f"And if {name} shares them among {share} friends?"),
            ("assistant", f"{total} / {share} = {total // share}, with {total % share} left over."),
        ]
    return [{"role": role, "content": content} for role, content in turns]


def timetable(rng: random.Random) -> list[dict[str, str]]:
    start, end = rng.sample(PLACES, 2)
    hour, minute, length = rng.randint(5, 21), rng.choice([0, 10, 25, 40]), rng.randint(20, 150)
    arrival = hour * 60 + minute + length
    return [
        {"role": "system", "content": "You answer questions about coaches. Be brief."},
        {"role": "user", "content": f"When does the {hour:02}:{minute:02} from {start} reach {end}?"},
        {
            "role": "assistant",
            "content": f"It takes {length} minutes and arrives at {arrival // 60 % 24:02}:{arrival % 60:02}.",
        },
        {"role": "user", "content": rng.choice(["Thanks!", "Is there a later one?", "Merci ! À bientôt."])},
        {
            "role": "assistant",
            "content": rng.choice(["You are welcome.", f"Yes, one hour later, at {hour + 1:02}:{minute:02}."]),
        },
    ]


def journal(rng: random.Random, days: int) -> str:
    lines = [f"# The journey of {rng.choice(NAMES)} and {rng.choice(NAMES)}", ""]
    for day in range(1, days + 1):
        deeds = rng.sample(DEEDS, rng.randint(2, 4))
        lines.append(
            f"Day {day}. {rng.choice(PLACES)}, {rng.choice(WEATHER)}. "
            + " ".join(
                f"{deed[0].upper()}{deed[1:]}, {rng.choice(['and', 'so', 'but'])} {rng.choice(DEEDS)}."
                for deed in deeds
            )
        )
    return "\n".join(lines) + "\n"


def main(output: Path) -> None:
    rng = random.Random(0)
    chats = [{"id": f"chat-{i}", "messages": rng.choice([arithmetic, timetable])(rng)} for i in range(2000)]
    days = [max(2, int(rng.lognormvariate(2.6, 1.1))) for _ in range(140)] + [260, 300, 420]
    documents = [{"id": f"journal-{i}", "text": journal(rng, min(n, 450))} for i, n in enumerate(days)]
    rng.shuffle(documents)
    output.mkdir(parents=True, exist_ok=True)
    for name, records in (("chats.jsonl", chats), ("journals.jsonl", documents)):
        text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        (output / name).write_text(text, encoding="utf-8")
    texts = [m["content"] for chat in chats for m in chat["messages"]] + [d["text"] for d in documents]
    save_tokenizer(texts, output / "tokenizer")
    (output / "model").mkdir(exist_ok=True)
    (output / "model" / "config.json").write_text(json.dumps(MODEL, indent=2) + "\n", encoding="utf-8")


def save_tokenizer(texts: list[str], folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        special_tokens=["<|pad|>", "<|start|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<|pad|>",
        "bos_token": "<|start|>",
        "eos_token": "<|end|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 131072,
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUTPUT)
