"""How `hbpack show` shows text: shortened, colored, by token, or as ids."""

from __future__ import annotations

import json
import re
import shutil

from packer_cli.cli.main import main
from tests.cli.show.conftest import PICTURES, parse, views_of
from tests.cli_runner import run
from tests.loader.packed_set import write_manifest
from tests.reference import home


def test_a_long_sample_is_shortened_in_the_middle(packed, expected):
    long = max(range(len(expected)), key=lambda i: len(expected[i][0]))
    lines = run(main, "show", packed, "--sample", long, "--max-chars", 90).stdout.splitlines()
    cut = [i for i, line in enumerate(lines) if line.startswith("...     ~ ")]
    for i, view in zip(cut, views_of(packed, "--sample", long), strict=True):
        [sample] = view["samples"]
        found = re.fullmatch(
            r"\.\.\.     ~ ([\d,]+) tokens left out, ([\d,]+) of them trained; --full shows them", lines[i]
        )
        left_out, trained = (int(number.replace(",", "")) for number in found.groups())
        # What is left is the begin and the end, of 45 characters each at most.
        assert sample["num_tokens"] - left_out >= 4
        assert trained in (left_out, left_out - 1)
    shown = parse(lines)
    assert all(40 < sum(len(text) for _, text in runs) <= 90 for runs in shown)
    whole = run(main, "show", packed, "--sample", long, "--full").stdout
    assert "left out" not in whole
    assert "".join(text for runs in parse(whole.splitlines()) for _, text in runs) == expected[long][0]


DOUBT = "the text may differ from what was encoded"
REMEDY = "name the one that the set was made with"

ESCAPES = re.compile(r"\x1b\[([0-9;]*)m")


def test_colors_say_the_same_and_nothing_else_commands_the_terminal(packed, expected):
    for sample in (0, 1, 5):
        text = run(main, "show", packed, "--sample", sample, "--color", "always").stdout
        body = text[text.index("-- sample") :].split("\n", 2)[2].rstrip("\n")
        assert set(ESCAPES.findall(text)) <= {"0", "1", "2", "32", "36"}
        assert "\x1b" not in ESCAPES.sub("", text)
        assert not {chr(code) for code in range(0x20)} & set(ESCAPES.sub("", text)) - set("\n\t")
        for code, is_trained in (("2", False), ("32", True)):
            found = re.findall(rf"\x1b\[{code}m(.*?)\x1b\[0m", body)
            wanted = [line for trained, run_text in expected[sample][1] if trained == is_trained
                      for line in run_text.translate(PICTURES).split("\n")]  # fmt: skip
            assert [piece for piece in found if piece != "↵"] == [line for line in wanted if line]
    assert "\x1b" not in run(main, "show", packed, "--sample", 0).stdout
    assert "[bold]no[/bold]" in run(main, "show", packed, "--sample", 0).stdout


def test_a_newline_beside_another_mask_shows_its_color(packed):
    text = run(main, "show", packed, "--sample", 1, "--color", "always").stdout
    assert "<|start|>assistant\x1b[0m\x1b[2m↵\x1b[0m\n" in text


def test_one_line_a_token(packed):
    [view] = views_of(packed, "--sample", 0)
    ids = [number for each in view["samples"][0]["runs"] for number in each["input_ids"]]
    lines = [line for line in run(main, "show", packed, "--sample", 0, "--tokens", "--full").stdout.splitlines()
             if line[7:10] == " | "]  # fmt: skip
    found = [re.fullmatch(r'(masked |trained) \| +(\d+) +([\d+]+)  "(.*)"', line) for line in lines]
    assert [int(number) for each in found for number in each[3].split("+")] == ids
    assert [int(each[2]) for each in found] == [
        sum(len(other[3].split("+")) for other in found[:k]) for k in range(len(found))
    ]
    assert any(each[4] == "中" and "+" in each[3] for each in found)
    assert any(each[4].endswith("\\n") for each in found)
    assert any("␛" in each[4] for each in found)


def test_without_the_tokenizer_there_are_ids(copy, tokenizer, tmp_path, monkeypatch):
    manifest = json.loads((home(copy) / "hbpack.json").read_text())
    assert manifest["tokenizer"].pop("name") == str(tokenizer)
    write_manifest(home(copy) / "hbpack.json", manifest)
    done = run(main, "show", copy, "--sample", 3)
    assert done.code == 0
    assert done.stderr == (
        "warning: token ids are shown instead of text: the set does not name its tokenizer; give --tokenizer PATH\n"
    )
    [sample] = [
        sample for view in views_of(copy, "--tokenizer", tokenizer, "--sample", 3) for sample in view["samples"]
    ]
    assert parse(done.stdout.splitlines()) == [
        [(each["trained"], "".join(f"{number} " for number in each["input_ids"])) for each in sample["runs"]]
    ]
    done = run(main, "show", copy, "--sample", 3, "--json")
    assert [each["text"] for each in json.loads(done.stdout)[0]["samples"][0]["runs"]] == [None] * len(sample["runs"])
    write_manifest(home(copy) / "hbpack.json", manifest | {"tokenizer": manifest["tokenizer"] | {"name": "./gone"}})
    done = run(main, "show", copy, "--sample", 3)
    assert done.code == 0
    assert done.stderr.startswith(
        "warning: token ids are shown instead of text: the set's tokenizer cannot be loaded (./gone: no such file or "
        "folder; "
    )
    assert done.stderr.endswith("); give --tokenizer PATH if it has moved\n")


def test_another_tokenizer_is_noticed(packed, tokenizer, tmp_path):
    other = shutil.copytree(tokenizer, tmp_path / "other")
    config = json.loads((other / "tokenizer_config.json").read_text())
    config["chat_template"] = "{% for message in messages %}{{ message.content }}{% endfor %}"
    (other / "tokenizer_config.json").write_text(json.dumps(config))
    done = run(main, "show", packed, "--sample", 3, "--tokenizer", other)
    assert (done.code, done.stderr) == (
        0,
        f"warning: tokenizer '{other}' has another chat template than the one that the set was made with: {DOUBT}\n",
    )
    assert done.stdout == run(main, "show", packed, "--sample", 3).stdout
    backend = json.loads((other / "tokenizer.json").read_text())
    backend["added_tokens"].append({**backend["added_tokens"][0], "id": 1024, "content": "<|new|>"})
    (other / "tokenizer.json").write_text(json.dumps(backend))
    done = run(main, "show", packed, "--sample", 3, "--tokenizer", other)
    assert (done.code, done.stdout, done.stderr) == (
        2,
        "",
        f"error: tokenizer '{other}' has 1,025 token ids and the set's has 1,024, so it is another one; {REMEDY}\n",
    )


def test_a_template_given_by_hand_is_known_again(corpus, tokenizer, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text("{% for message in messages %}[{{ message.role }}]{{ message.content }}<|end|>{% endfor %}")
    done = run(
        main, "pack", corpus[0], "--tokenizer", tokenizer, "--groups", "2k", "--gpus", 1, "--chat-template", template,
        "--workers", 1, "-o", tmp_path / "out",
    )  # fmt: skip
    assert done.code == 0, done.stderr
    [view] = views_of(tmp_path / "out", "--sample", 1)  # Without a warning.
    assert "".join(each["text"] for each in view["samples"][0]["runs"]).startswith("[user]")
