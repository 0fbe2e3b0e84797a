"""From what an assistant message wrote to what the model would have generated of it."""

from __future__ import annotations

from dataclasses import dataclass

from packer_cli.tokens.templates.types import Span


@dataclass(frozen=True, kw_only=True)
class TurnEdges:
    """How a template begins and ends the assistant's turns."""

    prompt: str
    """The generation prompt: the model goes on after it."""
    endings: tuple[str, ...]
    """Strings that can end a turn, EOS first: it ends most of them."""
    closers: tuple[str, ...]
    """Those that end a turn even after its round: EOS, unless it is BOS as well."""

    def trim(self, text: str, rounds: list[Span]) -> list[Span]:
        """Cut the headers off, and end each range after its end-of-turn token."""
        spans = []
        prompt, endings = self.prompt, self.endings
        for start, stop in rounds:
            if prompt and text.startswith(prompt, start, stop):
                begin = start + len(prompt)
            else:
                begin = start + _header_length(text, start, stop, prompt)
            # Templates of today end a turn with its token, or that and a newline.
            end = stop - 1 if text[stop - 1] == "\n" else stop
            if not text.endswith(endings, begin, end) or text[end - 1].isspace():
                end = self._turn_end(text, begin, stop)
            if end > begin:
                spans.append((begin, end))
        return spans

    def _turn_end(self, text: str, begin: int, stop: int) -> int:
        end = stop
        while end > begin and text[end - 1].isspace():
            end -= 1
        # Template or content may end with whitespace that is part of the special token itself: rare, try both.
        for candidate in (end, stop):
            if text.endswith(self.endings, begin, candidate):
                return candidate
        # Some templates close the turn at the head of the next one, or after the loop.
        for ending in self.endings:
            if ending in self.closers and text.startswith(ending, stop):
                return stop + len(ending)
        return stop


def turn_edges(prompt: str, special_tokens: tuple[str, ...], variables: dict[str, str]) -> TurnEdges:
    """The edges of a template with this generation prompt, these special tokens and `special_tokens_map`."""
    eos = variables.get("eos_token")
    return TurnEdges(
        prompt=prompt,
        endings=tuple(sorted(special_tokens, key=lambda token: token != eos)),
        closers=(eos,) if eos and eos != variables.get("bos_token") else (),
    )


def _header_length(text: str, start: int, stop: int, prompt: str) -> int:
    """Chars of `text[start:stop]` that the generation prompt had already written."""
    if not prompt:
        return 0
    head = text[start : min(stop, start + len(prompt))]
    length = _shared_length(head, prompt)
    if length == 0:
        # The whitespace between two turns may be written by either of them.
        bare, gap = prompt.lstrip(), len(head) - len(head.lstrip())
        head = text[start + gap : min(stop, start + gap + len(bare))]
        shared = _shared_length(head, bare)
        length = gap + shared if shared else 0
    return length


def _shared_length(one: str, other: str) -> int:
    """Chars at the beginning that two texts share."""
    length = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        length += 1
    return length
