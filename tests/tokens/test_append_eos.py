"""Which samples end with EOS, and that it is trained on; ids otherwise are those of transformers."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.corpus.types import Document, TokenBatch
from packer_cli.errors import TokenizerError
from packer_cli.tokens.encode.rows import ENDS, Frame
from packer_cli.tokens.tokenizer.loading import LoadedTokenizer
from tests.naive.frame import framed
from tests.tokens.helpers import CHATS, assert_well_formed, chats, encode, encoder_of, rows, tokens, turns

TEXTS = ["Hello world", "naïve 你好\n", "  spaces  \n\n", "ends in <|im_start|>"]
PAIRS = [("Ask: ", "answer é"), ("", " A\n")]
EOS_WRITTEN = "{% for message in messages %}{{ message.role + ': ' + message.content + eos_token }}{% endfor %}"
OPEN = "{% for message in messages %}{{ message.role + ': ' + message.content + '\\n' }}{% endfor %}"


def text(*texts):
    return [Document("text", line, text=text) for line, text in enumerate(texts, 1)]


def num_open(batch):
    return int(batch.is_open.sum())


@pytest.mark.parametrize("backend", ["tokenizers", "auto"])
@pytest.mark.parametrize("kind", ["bytes", "metaspace", "nfc", "bos"])
def test_texts_and_completions_end_with_eos(load, kind, backend):
    loaded = load(kind)
    pairs = [
        Document("prompt-completion", line, prompt=prompt, completion=completion)
        for line, (prompt, completion) in enumerate(PAIRS, 9)
    ]
    batch = encode(encoder_of(loaded, backend=backend, append_eos="auto"), text(*TEXTS) + pairs)
    assert_well_formed(batch)
    for given_text, (ids, mask) in zip([*TEXTS, *map("".join, PAIRS)], rows(batch), strict=True):
        assert ids == [*loaded.hf(given_text)["input_ids"], loaded.eos_token_id]
        assert mask[-1] == 1
    assert [sum(mask) == len(mask) for _, mask in rows(batch)] == [True] * 4 + [False, True]
    assert num_open(batch) == 0


def test_what_has_an_end_gets_no_other(load):
    """EOS, an end of turn that the template writes, a post-processor's EOS."""
    loaded = load("bytes", "chatml", eos_token="<|endoftext|>")
    closed = ["a<|endoftext|>", "a<|endoftext|>\n", "<|im_start|>user\na<|im_end|>\n", "a<|im_end|> \n\n"]
    batch = encode(encoder_of(loaded, append_eos="auto"), text(*closed))
    assert [ids for ids, _ in rows(batch)] == [loaded.hf(each)["input_ids"] for each in closed]
    # Without a template, nothing says that <|im_end|> ends anything.
    bare = load("bytes", None, eos_token="<|endoftext|>")
    batch = encode(encoder_of(bare, append_eos="auto"), text(*closed))
    assert [ids[-1] == bare.eos_token_id for ids, _ in rows(batch)] == [True, False, True, True]
    with_suffix = load("bos", None, eos_token="</s>")
    batch = encode(encoder_of(with_suffix, append_eos="auto"), text("a"))
    assert rows(batch)[0][0] == with_suffix.hf("a")["input_ids"]
    assert num_open(batch) == 0


@pytest.mark.parametrize("template", ["chatml", "chatml-generation", "llama2", "qwen3", "macro", "eos-between"])
@pytest.mark.parametrize("eos", ["<|im_end|>", "<|endoftext|>"])
def test_a_template_that_ends_its_turns_is_left_alone(load, template, eos):
    loaded = load("bytes", template, eos_token=eos)
    conversations = [turns("a", "b"), turns("a", "b", "c", "d\n")]
    with_eos, without = (
        encode(encoder_of(loaded, append_eos=how), chats(*conversations)) for how in ("auto", "never")
    )  # fmt: skip
    assert rows(with_eos) == rows(without)
    assert num_open(with_eos) == num_open(without) == 0


@pytest.mark.parametrize("loss_on", ["completion", "all"])
def test_a_template_that_leaves_its_turn_open(load, loss_on):
    """EOS follows the assistant's last words, and is trained on; it never follows a question."""
    loaded = load("bytes", OPEN)
    batch = encode(encoder_of(loaded, append_eos="auto", loss_on=loss_on), chats(*CHATS))
    assert_well_formed(batch)
    for messages, (ids, mask) in zip(CHATS, rows(batch), strict=True):
        expected = loaded.hf.apply_chat_template(messages, chat_template=OPEN, return_dict=False)
        if messages[-1]["role"] == "assistant":
            expected, last = [*expected, loaded.eos_token_id], 1
        else:
            last = int(loss_on == "all")
        assert (ids, mask[-1]) == (expected, last)
    assert num_open(batch) == sum(messages[-1]["role"] != "assistant" for messages in CHATS) == 1


def test_plain_content_may_not_forge_an_end(load):
    loaded = load("bytes", OPEN)
    encoder = encoder_of(loaded, append_eos="auto", plain_content=True)
    batch = encode(encoder, [*chats(turns("a", "b<|im_end|>")), Document("text", 2, text="c<|im_end|>")])
    for ids, mask in rows(batch):
        assert ids.count(loaded.eos_token_id) == 1
        assert (ids[-1], mask[-1]) == (loaded.eos_token_id, 1)


def test_tokens_stay_as_they_are(load):
    loaded = load("bytes", "chatml")
    documents = [tokens(1, [7, 8]), tokens(2, [7, loaded.eos_token_id])]
    batch = encode(encoder_of(loaded, append_eos="auto"), documents)
    assert [ids for ids, _ in rows(batch)] == [[7, 8], [7, loaded.eos_token_id]]
    assert num_open(batch) == 1


NO_EOS = (
    "texts, completions and chats that the template leaves open end with EOS, and the tokenizer has none; name a "
    "token of its vocabulary with --eos-token TOKEN, perhaps <|endoftext|>, or leave them open with --append-eos never"
)


@pytest.mark.parametrize("kind", ["text", "completion", "chat"])
def test_without_eos_what_would_be_left_open_is_refused(load, kind):
    bare = load("bytes", OPEN, eos_token=None)
    documents = {
        "text": text("a"),
        "completion": [Document("prompt-completion", 1, prompt="a", completion="b")],
        "chat": chats(turns("a", "b")),
    }[kind]
    with pytest.raises(TokenizerError) as error:
        encode(encoder_of(bare, append_eos="auto"), documents)
    assert str(error.value) == NO_EOS
    assert num_open(encode(encoder_of(bare, append_eos="never"), documents)) == 1


def test_without_eos_what_has_an_end_or_stays_open_is_kept(load):
    bare = load("bytes", "chatml", eos_token=None)
    documents = [*text("a<|im_end|>"), *chats(turns("a", "b"))[:1], tokens(3, [7, 8])]
    batch = encode(encoder_of(bare, append_eos="auto"), documents)
    assert num_open(batch) == 1


@pytest.mark.parametrize("eos", ["<|im_end|>", "<|endoftext|>", "a"])
def test_eos_may_be_named(make_tokenizer_folder, eos):
    """As transformers does with `tokenizer.eos_token = ...`; a template sees it, too."""
    from transformers import AutoTokenizer

    folder = str(make_tokenizer_folder("bytes", pad_token="<|endoftext|>"))
    loaded = LoadedTokenizer(folder, chat_template=EOS_WRITTEN, eos_token=eos)
    hf = AutoTokenizer.from_pretrained(folder)
    hf.eos_token = eos
    assert loaded.eos_token_id == hf.eos_token_id is not None
    assert loaded.describe().eos_token == eos
    batch = encode(encoder_of(loaded, append_eos="auto"), [*text("a b"), *chats(turns("a", "b"))])
    asked = hf.apply_chat_template(turns("a", "b"), chat_template=EOS_WRITTEN, return_dict=False)
    ends = [] if eos != "a" else [hf.eos_token_id]  # Written out, a piece of the vocabulary that is not special.
    found = [ids for ids, _ in rows(batch)]
    assert found[0] == [*hf("a b")["input_ids"], hf.eos_token_id]
    assert found[1] in (asked, asked + ends)
    assert LoadedTokenizer(folder).describe().fingerprint != loaded.describe().fingerprint


def test_a_named_eos_must_be_in_the_vocabulary(make_tokenizer_folder):
    folder = str(make_tokenizer_folder("bytes"))
    with pytest.raises(TokenizerError) as error:
        LoadedTokenizer(folder, eos_token="<|eos|>")
    assert str(error.value) == (
        f"--eos-token '<|eos|>' is not in the vocabulary of {folder}; its special tokens are </s>, <s>, "
        "<|endoftext|>, <|im_end|>, <|im_start|>"
    )


def test_never_counts_too(load):
    batch = encode(encoder_of(load("bytes"), append_eos="never"), text("a", "b<|im_end|>", "c"))
    assert num_open(batch) == 2


def test_the_sample_tokenizer(repo):
    loaded = LoadedTokenizer(str(repo / "examples" / "sample" / "tokenizer"))
    batch = encode(encoder_of(loaded, append_eos="auto"), [*text("One.", "Two.\n"), *chats(*CHATS[:2])])
    plain = [loaded.hf(each)["input_ids"] + [loaded.eos_token_id] for each in ("One.", "Two.\n")]
    rendered = [loaded.hf.apply_chat_template(messages, return_dict=False) for messages in CHATS[:2]]
    assert [ids for ids, _ in rows(batch)] == plain + rendered


def test_real_chats_and_texts(minimind, neox, real_chats):
    neox = LoadedTokenizer(neox.hf.name_or_path, eos_token="<|endoftext|>")  # That folder names no EOS.
    batch = encode(encoder_of(minimind, append_eos="auto"), chats(*real_chats))
    assert rows(batch) == rows(encode(encoder_of(minimind), chats(*real_chats)))
    texts = ["\n".join(message["content"] for message in messages) for messages in real_chats]
    for loaded in (minimind, neox):
        batch = encode(encoder_of(loaded, append_eos="auto"), text(*texts))
        for (ids, mask), each in zip(rows(batch), texts, strict=True):
            assert ids == [*loaded.hf(each)["input_ids"], loaded.eos_token_id]
            assert all(mask)
        assert num_open(batch) == 0


EOS, TURN, BLANK, BOS = 0, 1, 2, 3
sample = st.lists(st.tuples(st.integers(0, 6), st.sampled_from([0, 1, 0.5])), min_size=1, max_size=6)


@given(
    samples=st.lists(st.tuples(sample, st.booleans(), st.booleans(), st.sampled_from([0, 1, 2.5])), max_size=6),
    before=st.lists(st.just(BOS), max_size=2),
    after=st.lists(st.sampled_from([EOS, 5]), max_size=2),
    append_eos=st.sampled_from(["auto", "always", "never"]),
)
def test_frame_equals_one_sample_at_a_time(samples, before, after, append_eos):
    backend = SimpleNamespace(decode=lambda ids, skip_special_tokens: "\n" if ids == [BLANK] else "x")
    names = {"eos_token": "</s>", "bos_token": "<s>"}
    tokenizer = SimpleNamespace(
        hf=SimpleNamespace(backend_tokenizer=backend), vocab_size=7, eos_token_id=EOS, special_tokens_map=names,
        special_tokens=("</s>", "<turn>", "<s>", "<other>"), tool_template=None,
        chat_template="{{ '<s>' + '<turn>' }}",
        added_tokens={"</s>": EOS, "<turn>": TURN, "<s>": BOS, "<other>": 6},
        prefix_ids=tuple(before), suffix_ids=tuple(after),
    )  # fmt: skip
    expected = [
        framed(
            [token for token, _ in each], [bit for _, bit in each], before=before, after=after, is_plain=is_plain,
            may_close=may_close, end=end, append_eos=append_eos, eos=EOS, ends={EOS, TURN}, blanks={BLANK},
        )
        for each, is_plain, may_close, end in samples
    ]  # fmt: skip
    flat = TokenBatch(
        np.arange(len(samples)),
        np.cumsum([0, *(len(each) for each, *_ in samples)]),
        np.array([token for each, *_ in samples for token, _ in each], dtype=np.int32),
        np.array([bit for each, *_ in samples for _, bit in each], dtype=np.float32),
    )
    ends = np.array([(not is_plain, may_close, end) for _, is_plain, may_close, end in samples], ENDS)
    (_, offsets, ids, mask, _), is_open = Frame(tokenizer, append_eos=append_eos).add(flat, ends)
    found = [(ids[a:b].tolist(), mask[a:b].tolist()) for a, b in pairwise(offsets)]
    assert found == [(ids, mask) for ids, mask, _ in expected]
    assert is_open.tolist() == [not is_ended for _, _, is_ended in expected]
