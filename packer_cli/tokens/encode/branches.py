"""One document of several samples -> their texts: answers to a prompt, or the turns of a conversation."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from packer_cli.corpus.types import Document
from packer_cli.format.trees import TURNS
from packer_cli.tokens.encode.items import MOST_BRANCHES, branch_name, kind_of
from packer_cli.tokens.encode.prepare import Preparer
from packer_cli.tokens.encode.rows import Text

NOT_INFERENCE = (
    "an assistant turn that the chat template writes differently from the prompt of inference, so a model is trained "
    "on another context than it sees"
)

OTHERS_TURNS = "answers with turns of others, which carry a loss as in TRL; --loss-on last-turn leaves these out"


def why_rejected(error: ValueError) -> str:
    """Say why a document that raised this is rejected."""
    is_surrogate = isinstance(error, UnicodeEncodeError)
    return "holds a lone surrogate, which cannot be encoded as UTF-8" if is_surrogate else str(error)


class BranchPreparer:
    """Turns documents with branches into `Text`.

    Args:
        preparer: of their branches.
        eos: ends answers that are texts; None: nothing is added.
    """

    def __init__(self, preparer: Preparer, eos: str | None) -> None:
        self._preparer = preparer
        self._parts = preparer.parts
        self._eos = eos

    def prepare(self, document: Document) -> tuple[list[Text], str | NDArray[np.int32] | None, bool]:
        """Prepare the samples, the prompt, and whether a text contains that of a special token.

        The prompt is the text of the prompt alone, or its ids; None: the loss does not depend on it.

        Raises: as `Preparer.prepare`, for the first sample that fails.
        """
        if len(document.branches) > MOST_BRANCHES:
            raise ValueError(f"it has {len(document.branches):,} samples, and an item has at most {MOST_BRANCHES:,}")
        items: list[Text] = []
        has_special, kind = False, kind_of(document)
        unused = self._preparer.unused
        before = Counter(unused)
        try:
            for number, branch in enumerate(document.branches):
                try:
                    item, found = self._preparer.prepare(branch)
                except ValueError as error:
                    raise ValueError(f"{branch_name(kind, number)}: {why_rejected(error)}") from None
                items.append(item if kind == TURNS else self._as_answer(item, branch))
                has_special = has_special or found
        finally:
            for what, count in unused.items():  # What several samples hold counts for one record.
                unused[what] = min(count, before[what] + 1)
        if kind == TURNS:
            self._compare_with_inference(document, items)
            return items, None, has_special
        prompt = None if self._parts is None else self._preparer.prompt(document.branches[0])
        return items, prompt, has_special

    def _as_answer(self, item: Text, document: Document) -> Text:
        """Give an answer the loss and the end that TRL gives it: all after the prompt, and EOS after a text."""
        parts, weight, eos = self._parts, document.weight, self._eos
        is_chat = bool(document.messages)
        item = item._replace(may_close=item.may_close and not is_chat and (eos is None or item.encoded is not None))
        is_whole = parts is not None and parts.are_whole_turns and not (is_chat and parts.only_last)
        if is_whole and weight and document.weights is None:
            if any(message.get("role") != "assistant" for message in document.messages[document.num_prompt :]):
                self._preparer.unused[OTHERS_TURNS] += 1
            item = item._replace(spans=None, weights=None, end_weight=weight)
        if is_chat or item.encoded is not None or eos is None or item.text.endswith(eos):
            return item
        stop = len(item.text)
        item = item._replace(text=item.text + eos)
        if item.spans is None or not item.end_weight:
            return item
        weights = item.weights and [*item.weights, item.end_weight]
        return item._replace(spans=[*item.spans, (stop, stop + len(eos))], weights=weights)

    def _compare_with_inference(self, document: Document, items: list[Text]) -> None:
        """Count a conversation of which a turn does not continue what the model sees at inference."""
        for branch, item in zip(document.branches, items, strict=True):
            if not branch.num_prompt or item.encoded is not None:
                continue
            try:
                prompt = self._preparer.prompt(branch)
            except ValueError:
                continue  # The template need not accept the beginning of a conversation.
            if isinstance(prompt, str) and not item.text.startswith(prompt):
                self._preparer.unused[NOT_INFERENCE] += 1
                return


def turns_of(document: Document) -> Document:
    """Give a conversation a branch for each assistant turn with a loss: the messages up to it, with its loss alone.

    With one such turn, return that branch as the document; with none, the document as it is. Price: the branches of n
    turns have about n/2 times the messages.
    """
    messages, weights = document.messages, document.weights or (1.0,) * len(document.messages)
    branches = tuple(
        document._replace(
            messages=messages[: number + 1], num_prompt=number, weights=None, weight=document.weight * weights[number]
        )
        for number, message in enumerate(messages)
        if message.get("role") == "assistant" and number >= document.num_prompt and weights[number]
    )
    if len(branches) < 2:
        return branches[0] if branches else document
    return document._replace(branches=branches, messages=[], weights=None, num_prompt=0, rewards=(), values={})
