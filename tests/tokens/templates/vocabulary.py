"""A tokenizer for any chat template: a real one, to which the tokens that the template writes are added."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.tokens.templates.plain import Plain, TemplateError

_SPECIAL = re.compile(
    r"<[|｜][^\s<>{}'\"+]{1,40}?[|｜]>|<\|\w+>|<\w+\|>|</s>|<s>|<bos>|<eos>|<pad>|<BOS_TOKEN>|<EOS_TOKEN>|"
    r"<(?:start|end)_of_\w+>|<seed:[be]os>|<SPECIAL_\d+>|<extra_id_\d+>|<sop>|\[gMASK\]|\[\|\w+\|\]|<\w+_sep>|"
    r"\[/?(?:INST|TOOL_CALLS|AVAILABLE_TOOLS|TOOL_RESULTS|SYSTEM_PROMPT|ARGS|CALL_ID|THINK|TOOL_CONTENT)\]|\]~b\]|\[e~\["
)
"""What looks like a special token."""
_ENDS = ("<|END_OF_TURN_TOKEN|>", "<|im_end|>", "<|eot_id|>", "<|return|>", "<|end|>", "<|eom|>", "<end_of_turn>")
"""Which end a turn, where a template writes several tokens after an answer."""
_HAND_OVER = ("<|user|>", "<|observation|>")
"""EOS tokens of templates that write nothing after an answer but the next role."""
_BOS, _EOS, _PAD = "<s>", "</s>", "<|endoftext|>"
_ASKED = [{"role": "user", "content": "Zxask"}, {"role": "assistant", "content": "Zxsaid"}]


def make_tokenizer(template: str, real: Path, folder: Path) -> Path:
    """Write a tokenizer for a template into a folder, with its `generation_config.json`.

    Args:
        real: folder of a byte-level tokenizer.
    """
    config = json.loads((real / "tokenizer.json").read_text(encoding="utf-8"))
    plain = Plain(template, bos_token=_BOS, eos_token=_EOS)
    texts = [template]
    for messages in (_ASKED, [{"role": "system", "content": "Zxrule"}, *_ASKED], [*_ASKED, *_ASKED]):
        for prompted in (False, True):
            try:
                texts.append(plain.render(messages, prompted=prompted))
            except TemplateError:
                continue
    found = {token for text in texts for token in _SPECIAL.findall(text)} | {_BOS, _EOS, _PAD}
    ends = _ends(plain)
    eos = next((end for end in _ENDS if end in ends), ends[0] if ends else _EOS)
    eos = _PAD if not ends and set(_HAND_OVER) <= found else eos
    known = {token["content"]: token["id"] for token in config["added_tokens"]}
    number = max([*config["model"]["vocab"].values(), *known.values()]) + 1
    for token in sorted(found - known.keys()):
        known[token] = number
        usual = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        config["added_tokens"].append({"id": number, "content": token, **usual})
        number += 1
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(config), encoding="utf-8")
    names = {"bos_token": _BOS, "eos_token": eos, "pad_token": _PAD}
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")
    stops = [eos, *(_HAND_OVER if eos == _PAD and not ends else ())]
    generation = {"eos_token_id": [known[token] for token in dict.fromkeys(stops)]}
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    return folder


def _ends(plain: Plain) -> list[str]:
    """The special tokens between an answer and what follows it, without those of roles."""
    for tools in (None, [{"type": "function", "function": {"name": "find", "description": "", "parameters": {}}}]):
        try:
            once, twice = (plain.render(turns, tools) for turns in (_ASKED, [*_ASKED, *_ASKED]))
            break
        except TemplateError:
            continue
    else:
        return []
    last = _SPECIAL.findall(once.rpartition("Zxsaid")[2])
    before = set(_SPECIAL.findall(twice.partition("Zxsaid")[0]))
    between = _SPECIAL.findall(twice.partition("Zxsaid")[2].partition("Zxask")[0])
    return last or [token for token in between if token not in before]
