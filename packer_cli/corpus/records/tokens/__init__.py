"""Tokenized records: `{"input_ids": [...]}` with an optional loss, one sample or several packed into one row.

The loss comes from `labels` (-100 where there is none, else the token itself), or from masks of 0 and 1:
`loss_mask`, `assistant_masks`, `completion_mask`. Where several are given, a token counts if all say so.
Positions whose `attention_mask` is 0 are padding and are dropped. `weight`, a number, is that of all its tokens.

A packed row is split into its samples again, by `seq_lengths` (TRL), by `position_ids` that restart at 0 (Axolotl,
TRL), or by an `attention_mask` that counts the samples from 1 (Axolotl, LLaMA-Factory).

Records are checked many at a time: 2 ns a token for arrays. JSON lists cost about 20 ns a token to become arrays.

::

    record.py     records -> columns, and their weights
    columns.py    names of columns; lists of Python integers -> arrays
    rows.py       columns -> samples: checks lengths, ids, labels and masks, finds where those of a packed row begin
"""

from packer_cli.corpus.records.tokens.columns import COLUMNS, IDS, NO_BOOLEANS
from packer_cli.corpus.records.tokens.record import SHAPE, TokenRecord, read_records
from packer_cli.corpus.records.tokens.rows import read_rows

__all__ = ["COLUMNS", "IDS", "NO_BOOLEANS", "SHAPE", "TokenRecord", "read_records", "read_rows"]
