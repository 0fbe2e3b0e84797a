"""Reading a slice: raw records by the file's format, documents by the record's shape."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from packer_cli.corpus.blocks import require_span
from packer_cli.corpus.readers.base import RawBatch, ReadRules, default_slice_bytes
from packer_cli.corpus.readers.registry import READERS, TOKEN_FORMATS
from packer_cli.corpus.records.base import type_name
from packer_cli.corpus.records.shapes import Normalizer
from packer_cli.corpus.records.token_rows import NUM_IDS, TokenRecord, read_records, read_rows
from packer_cli.corpus.types import (
    OF_ITEMS,
    AlpacaForm,
    CorpusSlice,
    Document,
    DocumentBatch,
    Gap,
    ItemsFrom,
    Record,
    Reject,
)
from packer_cli.corpus.unchanged import is_pinned, require_unchanged
from packer_cli.errors import ConfigError, HbpackError


class SliceReader(Normalizer):
    """Reads slices by the same rules, one after another. Making it takes longer than reading a small file."""

    def __init__(
        self,
        *,
        schema: str = "auto",
        alpaca_form: AlpacaForm = "stanford",
        items: ItemsFrom = "auto",
        rules: ReadRules | None = None,
    ) -> None:
        super().__init__(schema, alpaca_form, items)
        self._rules = rules or ReadRules()
        self.fields |= {*self._rules.keep}
        self.kept: dict[int, list[str | None]] = {}
        """Values of the columns to keep, by the line of the record and its `base`."""
        self.lost = Counter[int]()
        """Bytes of each slice's file that could not be read, by the slice's `base`."""

    def read(self, slice_: CorpusSlice, base: int = 0) -> Iterator[DocumentBatch]:
        """Yield every record once, as a document, as tokenized samples or as a reject, each in file order.

        A batch holds about `batch_bytes` of input, so memory is a few times that, or the longest record. Bad records,
        and those of more than `max_record_bytes`, are rejects, never errors. Raises InputError when the file cannot
        be opened, RunError when it has changed since it was listed.
        Price: 115 MB/s a core for chat JSON lines, 80 for a JSON array of chats.

        Args:
            base: is added to the line of each record.
        """
        file, schema = slice_.file, self._schema
        try:
            if slice_.unreadable:
                self.lost[base] += _num_bytes(slice_)
                yield DocumentBatch(rejects=[Gap(base + slice_.first_line, slice_.unreadable)])
            elif file.format in TOKEN_FORMATS and schema not in ("auto", "tokens"):
                has_items = self._items in OF_ITEMS
                remedy = f"leave out --items {self._items}" if has_items else "give --schema auto or tokens"
                raise ConfigError(f"{file.path}: holds token ids, not {schema} records; {remedy}")
            else:
                found = READERS[file.format].read(slice_, self._rules, self.fields)
                for raw in islice(found, None, None, slice_.every):
                    self.lost[base] += raw.lost
                    yield self._documents(raw, base)
        except HbpackError:
            require_unchanged(file)  # Else this is why.
            raise
        if file.content is None and not is_pinned(file):
            require_span(slice_)
            require_unchanged(file)

    def _documents(self, raw: RawBatch, base: int) -> DocumentBatch:
        batch = DocumentBatch(rejects=[reject._replace(line=base + reject.line) for reject in raw.rejects])
        parse, keep, reject = self.parse, batch.documents.append, batch.rejects.append
        tokenized: list[TokenRecord] = []
        for line, record in raw.records:
            document = parse(record, base + line)
            if self._rules.keep and type(document) is not Reject:
                document = self._keep(record, base + line) or document
            if type(document) is Document:
                keep(document)
            elif type(document) is TokenRecord:
                tokenized.append(document)
            else:
                reject(document)  # type: ignore[arg-type]
        if tokenized or raw.tokens is not None:
            rows, num_ids = raw.tokens, self._rules.vocab_size or NUM_IDS
            if rows is None:
                batch.tokens, refused = read_records(tokenized, num_ids)
            else:
                batch.tokens, refused = read_rows(rows._replace(lines=base + rows.lines), num_ids)
            batch.rejects += refused
            lost = {entry.line for entry in refused}
            batch.pairs = {line: values for line, _, values in tokenized if values is not None and line not in lost}
        batch.rejects.sort(key=lambda entry: entry.line)
        return batch

    def _keep(self, record: Record, line: int) -> Reject | None:
        """Note the values of the columns to keep; return a reject for a record in which one is nested."""
        values: list[str | None] = []
        for name in self._rules.keep:
            value = record.get(name)
            if isinstance(value, (list, dict)) or hasattr(value, "dtype"):
                return Reject(line, f'"{name}" is {type_name(value)}, and --keep-columns keeps no lists and objects')
            is_text = value is None or isinstance(value, str)
            values.append(value if is_text else json.dumps(value, default=str).strip('"'))
        self.kept[line] = values
        return None


def _num_bytes(slice_: CorpusSlice) -> int:
    """Return the bytes of a slice, or about those that a slice of its file has."""
    if slice_.span is not None:
        return slice_.span[1] - slice_.span[0]
    return min(slice_.file.num_bytes, default_slice_bytes(slice_.file.num_bytes))
