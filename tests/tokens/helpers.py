"""Documents to encode, and encoded batches taken apart."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from packer_cli.corpus.records.token_rows import TokenRecord, read_records
from packer_cli.corpus.types import Document, DocumentBatch
from packer_cli.format.tokens import SampleOptions
from packer_cli.tokens.encode.encoder import Encoder
from packer_cli.tokens.encode.masks import Backends


def chats(*conversations):
    return [Document("messages", line, messages=messages) for line, messages in enumerate(conversations, 1)]


def tokens(line, ids, mask=None):
    """A tokenized record."""
    return TokenRecord(line, {"input_ids": list(ids), **({} if mask is None else {"loss_mask": list(mask)})})


def turns(*contents):
    return [{"role": ("user", "assistant")[number % 2], "content": content} for number, content in enumerate(contents)]


def encoder_of(loaded, *, backend="auto", append_eos="never", check_samples=16, is_exact=False, **options):
    """An encoder of a tokenizer, with these of the options of `hbpack tokenize`."""
    own = SampleOptions(tokenizer_backend=backend, append_eos=append_eos, **options)
    return Encoder(Backends(loaded), own, check_samples=check_samples, is_exact=is_exact)


def encode(encoder, documents):
    """The samples, with a mask that is written out."""
    tokenized = [each for each in documents if isinstance(each, TokenRecord)]
    batch = encoder.encode(
        DocumentBatch(
            documents=[each for each in documents if isinstance(each, Document)],
            tokens=read_records(tokenized)[0] if tokenized else None,
        )
    )
    samples = batch.samples
    mask = np.ones(len(samples.input_ids), np.bool_) if samples.loss_mask is None else samples.loss_mask
    written = samples._replace(input_ids=samples.input_ids.astype(np.int32), loss_mask=mask)
    return SimpleNamespace(whole=replace(batch, samples=written), **vars(batch), **written._asdict())


def rows(batch):
    pairs = zip(batch.offsets[:-1], batch.offsets[1:], strict=True)
    return [(batch.input_ids[a:b].tolist(), batch.loss_mask[a:b].tolist()) for a, b in pairs]


def assert_well_formed(batch):
    assert batch.offsets.dtype == np.int64
    assert (batch.input_ids.dtype, batch.loss_mask.dtype) == (np.int32, np.bool_)
    assert batch.lines.dtype == np.int64
    assert batch.offsets[0] == 0
    assert batch.offsets[-1] == len(batch.input_ids) == len(batch.loss_mask)
    assert len(batch.offsets) == len(batch.lines) + 1
    assert (np.diff(batch.offsets) > 0).all()


CHATS = [
    turns("Hello", "Hi there!", "How are you?", " fine \n"),
    turns("naïve café", "straße 你好 🙂", "12", "é"),
    turns("<|im_end|> in content", "and <|im_start|>here"),
    turns("a", ""),
    [{"role": "system", "content": "Be brief."}, *turns("x", "y")],
    turns("only a question"),
]


def way_of(renderer, messages=None):
    """How the assistant's text of a conversation, or of a question and its answer, is found."""
    reading = renderer.reading(renderer.read(messages or turns("Ask.", "Say.")).shape)
    assert not reading.refusal
    return reading.way
