"""Record shapes: from a raw dict to a `Document`, one shape a file, one registry.

The order of `SHAPES` is the order in which `auto` tries them, so a record with `messages` and `text`
is a chat. Detection looks at the keys alone and is remembered by the tuple of keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from packer_cli.corpus.records import messages, token_rows, unused
from packer_cli.corpus.records.answers import GROUP, PAIR
from packer_cli.corpus.records.base import BadRecordError, Shape, show_keys, take_shape, without_texts
from packer_cli.corpus.records.texts import ALPACA, PROMPT, TEXT
from packer_cli.corpus.records.token_rows import TokenRecord
from packer_cli.corpus.types import OF_ITEMS, AlpacaForm, Document, ItemsFrom, Record, Reject
from packer_cli.plugins import Registry

_OWN = {
    "tokens": token_rows.SHAPE,
    "preference": PAIR["stanford"],
    "completions": GROUP,
    "messages": messages.SHAPE,
    "alpaca": ALPACA["stanford"],
    "prompt-completion": PROMPT,
    "text": TEXT,
}

SHAPES: Registry[Shape] = Registry("shapes", "record schema", _OWN, take_shape)
"""Every record shape by the name that `--schema` takes, in the order of detection, which tries only hbpack's own."""

Parsed = Document | TokenRecord | Reject
Parse = Callable[[Record, int], Parsed]


class Normalizer:
    """Turns records into documents by one schema, or by each record's own shape (`auto`).

    Args:
        alpaca_form: what Alpaca records become, see `packer_cli.corpus.records.texts`.
        items: whether preference pairs and groups are taken, or taken alone.

    Price: below 1 us a record beside what its shape costs. Holds one entry for each set of keys seen.
    """

    def __init__(self, schema: str = "auto", alpaca_form: AlpacaForm = "stanford", items: ItemsFrom = "auto") -> None:
        schema = OF_ITEMS.get(items, schema)
        self._schema, self._items = schema, items
        self._by_keys: dict[tuple[str, ...], Parse] = {}
        of_form = {"alpaca": ALPACA[alpaca_form], "preference": PAIR[alpaca_form]}
        self._shapes = {**SHAPES, **of_form}
        if schema != "auto":
            self._shapes = {schema: self._shapes.get(schema) or SHAPES[schema]}
        elif items == "none":
            self._shapes = {name: shape for name, shape in self._shapes.items() if name not in OF_ITEMS.values()}
        of_shapes = frozenset(key for shape in self._shapes.values() for key in shape.fields())
        self.fields: frozenset[str] = of_shapes | unused.WATCHED
        """The only keys that matter; columnar readers load no others."""
        self.unused: Counter[str] = Counter()
        """Records with something that is not used, by what it is, for people."""

    def parse(self, record: Record, line: int) -> Parsed:
        """Parse the document of one record, or say why it has none; a tokenized record is only recognized."""
        keys = tuple(record)
        parse = self._by_keys.get(keys)
        if parse is None:
            parse = self._detect(keys)
            if len(self._by_keys) < 10_000:  # data with random keys must not fill the memory
                self._by_keys[keys] = parse
        document: Parsed
        try:
            document = parse(record, line)
        except BadRecordError as error:
            document = Reject(line, without_texts(str(error), record))
        # `None in record.values()` would compare arrays, which have no truth value.
        if type(document) is Reject and any(value is None for value in record.values()):
            # Tables written as JSON lines give every record every key, null where it has none.
            present = {key: value for key, value in record.items() if value is not None}
            if tuple(present) != keys:
                again = self.parse(present, line)
                return document if type(again) is Reject else again
        return document

    def _detect(self, keys: tuple[str, ...]) -> Parse:
        for name, shape in self._shapes.items():
            is_turn = self._schema == "auto" and name == "text" and "text" not in keys and "role" in keys
            if shape.matches(keys) and not is_turn:
                return self._watched(name, shape, keys)
        return self._unknown

    def _watched(self, name: str, shape: Shape, keys: tuple[str, ...]) -> Parse:
        """Return the shape's parser, which looks at other keys that matter where there are any."""
        watched = unused.watched(name, keys, shape.fields())
        if not watched:
            return shape.parse
        no_pairs = None if self._schema != "auto" else unused.HALF_PAIR if self._items == "auto" else unused.NO_ITEMS

        def parse(record: Record, line: int) -> Parsed:
            found = unused.find_unused(name, record, watched, no_pairs=no_pairs)
            document: Parsed = shape.parse(record, line)
            if type(document) is not Reject:
                self.unused.update(map(unused.describe, found))
            return document

        return parse

    def _unknown(self, record: Record, line: int) -> Reject:
        keys = show_keys(record)
        if self._schema != "auto":
            needed = f"{self._shapes[self._schema].expected()}{self._meant(record)}"
            return Reject(line, f"not a {self._schema} record: has keys {keys}; needs {needed}")
        if unused.is_pair(record):
            return Reject(line, f"has keys {keys}: {unused.NO_PAIRS if self._items == 'none' else unused.OTHER_PAIR}")
        firsts = (shape._replace(alternatives=shape.alternatives[:1]) for shape in self._shapes.values())
        usual = ", ".join(shape.expected() for shape in firsts)
        expected = f"expected one of {usual}, ... (docs/data.md){self._meant(record)}"
        return Reject(line, f"no known record shape: has keys {keys}; {expected}")

    def _meant(self, record: Record) -> str:
        """Ask whether keys of a record that are nearly those of a shape are meant to be."""
        from difflib import get_close_matches

        known = [key for shape in self._shapes.values() for keys in shape.alternatives for key in keys]
        others = [key.lower() for key in record if key not in unused.WATCHED and key not in known]
        near = dict.fromkeys(found for key in others for found in get_close_matches(key, known, n=1, cutoff=0.8))
        return "; did you mean " + " and ".join(f'"{key}"' for key in near) + "?" if near else ""
