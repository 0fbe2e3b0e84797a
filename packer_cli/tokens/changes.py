"""The differences between a run and the one that made the store, for a line before the work begins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from packer_cli.config.messages import option_name
from packer_cli.format.tokens import TokenizerInfo
from packer_cli.sizes import counted
from packer_cli.tokens.index import StoreIndex

Files = Mapping[str, str]
"""The fingerprint of each file's content, by name, in order."""


def changed(before: StoreIndex, now: StoreIndex, tokenizer: TokenizerInfo, files: Files | None) -> list[str]:
    """List, for people, the differences between a store and the run that replaces it.

    Args:
        now: facts about the whole run; of its tokenizer only the name.
        tokenizer: the run's.
        files: of the run; None if it makes a part of the store.
    """
    old, found = before.tokenizer, []
    is_template = old.chat_template_fingerprint != tokenizer.chat_template_fingerprint
    is_other = (old.name, old.vocab_size) != (now.tokenizer.name, tokenizer.vocab_size)
    if old.fingerprint != tokenizer.fingerprint and (is_other or not is_template):
        found.append("the tokenizer")
    if is_template or before.options.chat_template != now.options.chat_template:
        found.append("the chat template")
    was, new = (
        {option_name(name): str(value).lower() for name, value in vars(each.options).items()} | each.library_versions
        for each in (before, now)
    )
    names = [name for name in was | new if was.get(name) != new.get(name) and name != "--chat-template"]
    found += [f"{name} {was.get(name, 'none')} -> {new.get(name, 'none')}" for name in names]
    if files is not None:
        found += _files({file.path: file.fingerprint for part in before.parts for file in part.files}, files)
    return found


def _files(was: Files, now: Files) -> list[str]:
    gone, new = ({path: was.get(path) or now[path] for path in pair} for pair in (was.keys() - now, now.keys() - was))
    renamed = (Counter(gone.values()) & Counter(new.values())).total()
    both = was.keys() & now.keys()
    changed = sum(was[path] != now[path] for path in both)
    counts = {"added": len(new) - renamed, "removed": len(gone) - renamed, "changed": changed, "renamed": renamed}
    found = [f"{counted(number, 'file')} {what}" for what, number in counts.items() if number]
    return found or ["the order of files"] * ([*was] != [*now])
