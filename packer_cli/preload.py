"""What every worker needs, imported once by the server that workers are forked from.

Kernels are called once as well: the first call of a compiled function loads it, or compiles it on a first run.
"""

import gc

import gigatoken  # noqa: F401
import jinja2  # noqa: F401
import numpy as np
import orjson  # noqa: F401
import tokenizers  # noqa: F401
import transformers.tokenization_utils_tokenizers
import transformers.utils.chat_template_utils  # noqa: F401

import packer_cli.corpus.read
import packer_cli.shards.write
import packer_cli.tokens.encoder
import packer_cli.tokens.tokenizer  # noqa: F401
from packer_cli.plan.cost import pack_tokens_and_work
from packer_cli.tokens.masks import mark_spans
from packer_cli.tokens.store import copy_spans, count_loss_tokens


def _call_kernels() -> None:
    none = np.zeros(0, dtype=np.int64)
    start = np.zeros(1, dtype=np.int64)
    ids, mask, lengths = np.zeros(0, np.int32), np.zeros(0, np.int8), np.zeros(0, np.int32)
    mark_spans(ids, start, none, none, start, none.reshape(0, 2), mask, np.zeros(0, np.bool_))
    count_loss_tokens(mask, start)
    copy_spans(ids, mask, none, lengths, none, ids, mask)
    pack_tokens_and_work(start, none, lengths)


_call_kernels()
# What is here stays: the collector need not look at it again, nor as often at the many objects of records.
gc.freeze()
gc.set_threshold(50_000)
