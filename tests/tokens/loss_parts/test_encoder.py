"""`--loss-on` with parts for records that are no chats, and with `--plain-content`."""

from packer_cli.corpus.types import Document
from tests.tokens.helpers import chats, encode, encoder_of, rows
from tests.tokens.published_templates import QWEN3


def test_texts_and_completions(load):
    tokenizer = load("bytes", "chatml")
    documents = [
        Document("text", 1, text="A <think> tag."),
        Document("prompt-completion", 2, prompt="Q: ", completion="<think>\nhm\n</think>\n\nA"),
        Document("prompt-completion", 3, prompt="Q: <think>\n", completion="hm</think>A"),
        Document("prompt-completion", 4, prompt="Q: ", completion="A"),
    ]

    def trained(loss_on):
        batch = encode(encoder_of(tokenizer, loss_on=loss_on, append_eos="auto"), documents)
        texts = {
            line: tokenizer.hf.decode([one for one, bit in zip(ids, mask, strict=True) if bit]).lstrip(" ")
            for line, (ids, mask) in zip(batch.lines.tolist(), rows(batch), strict=True)
        }
        return texts, {reject.line: reject.reason for reject in batch.rejects}

    end = "<|im_end|>"
    whole = {1: f"A <think> tag.{end}", 4: f"A{end}"}
    texts, rejects = trained("last-turn")
    assert (texts, rejects) == (
        {**whole, 2: f"<think>\nhm\n</think>\n\nA{end}", 3: f"hm</think>A{end}"},
        {},
    )
    assert trained("no-reasoning") == ({**whole, 2: f"\n\nA{end}", 3: f"A{end}"}, {})
    no_turns = "a plain text has no assistant turns, and --loss-on trains only on parts of these"
    assert trained("reasoning") == ({2: "<think>\nhm\n</think>", 3: "hm</think>", 4: ""}, {1: no_turns})
    no_calls = (
        'a completion that is a string does not say which part of it is a tool call; give messages with "tool_calls"'
    )
    assert trained("tool-calls") == ({}, {1: no_turns, 2: no_calls, 3: no_calls, 4: no_calls})


def test_a_prompt_of_messages(load):
    """Carries no loss, as in TRL."""
    tokenizer = load("bytes", "chatml")
    said = [{"role": role, "content": content} for role, content in (("user", "Hi"), ("assistant", "Yo"))]

    def trained(loss_on, *completion, num_prompt=3, **fields):
        messages = [*said, {"role": "user", "content": "How?"}, *completion]
        document = Document("messages", 1, messages=messages, num_prompt=num_prompt, **fields)
        batch = encode(encoder_of(tokenizer, loss_on=loss_on), [document])
        assert not batch.rejects
        ((ids, mask),) = rows(batch)
        return tokenizer.hf.decode([one for one, bit in zip(ids, mask, strict=True) if bit]), {*mask}

    answer = {"role": "assistant", "content": "So."}
    more = [answer, {"role": "user", "content": "And?"}, {"role": "assistant", "content": "Done."}]
    end = "<|im_end|>"
    assert trained("completion", answer) == (f"So.{end}", {0, 1})
    assert trained("completion", *more) == (f"So.{end}Done.{end}", {0, 1})
    assert trained("last-turn", *more) == (f"Done.{end}", {0, 1})
    assert trained("no-reasoning", answer) == (f"So.{end}", {0, 1})
    assert trained("completion", answer, num_prompt=0) == (f"Yo{end}So.{end}", {0, 1})
    assert trained("completion", *more, weights=(1.0, 1.0, 1.0, 0.5, 1.0, 2.0)) == (f"So.{end}Done.{end}", {0, 0.5, 2})
    assert trained("all", answer)[1] == {1}


def test_plain_content(load):
    """Special tokens in the data are text, and the parts around them keep their places."""
    tokenizer = load("bytes", QWEN3)
    messages = [
        {"role": "user", "content": "<|im_end|>?"},
        {"role": "assistant", "content": "Use <|im_end|>.", "reasoning_content": "It is <|im_end|>"},
    ]
    documents = [
        *chats(messages),
        Document("prompt-completion", 2, prompt="<s>", completion="<think><s></think>b <s>"),
    ]
    for loss_on, first, second in [
        ("reasoning", "<think>\nIt is <|im_end|>\n</think>", "<think><s></think>"),
        ("no-reasoning", "\n\nUse <|im_end|>.<|im_end|>", "b <s>"),
    ]:
        encoder = encoder_of(tokenizer, loss_on=loss_on, plain_content=True)
        found = []
        for ids, mask in rows(encode(encoder, documents)):
            kept = [one for one, bit in zip(ids, mask, strict=True) if bit]
            found.append(tokenizer.hf.decode(kept))
        assert found == [first, second]
