"""Output folders that hbpack refuses, and sets that an error leaves as they are."""

from __future__ import annotations

import json
import shutil

from tests.reference import tree


def test_a_usage_error_leaves_an_earlier_set_as_it_is(pack, chats, tmp_path):
    assert pack(chats).code == 0
    before = tree(tmp_path / "out")
    for arguments in (
        [chats, "--tokenizer", tmp_path / "none"],
        [chats, "--chat-template", "{% for %}"],
        [tmp_path / "none.jsonl"],
        [chats, "--packing", "magic"],
        [chats, "--groups", "8k,1k"],
    ):
        assert pack(*arguments).code == 2
        assert tree(tmp_path / "out") == before


def test_outputs_that_are_not_ours(pack, chats, tmp_path):
    def refuses(output, message):
        before = tree(output) if output.is_dir() else None
        done = pack(chats, output=output)
        assert (done.code, done.stderr) == (2, f"error: {message}\n")
        assert (tree(output) if output.is_dir() else None) == before

    folder = tmp_path / "holiday"
    folder.mkdir()
    (folder / "photo.jpg").touch()
    refuses(folder, f"output folder '{folder}' holds something else (photo.jpg); name an empty or a new folder")
    thesis = tmp_path / "thesis"
    (thesis / "tokens").mkdir(parents=True)
    (thesis / "tokens" / "part-00099.arrow").touch()
    refuses(thesis, f"output folder '{thesis}' holds something else (tokens); name an empty or a new folder")
    file = tmp_path / "file"
    file.touch()
    refuses(file, f"output folder '{file}': '{file}' is a file; name another")
    refuses(file / "below", f"output folder '{file}/below': '{file}' is a file; name another")


def test_an_output_that_cannot_be_written(pack_as_user, chats, tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    assert pack_as_user(chats, closed / "out") == (
        f"error: output folder '{closed}/out': '{closed}' cannot be written to; name another\n"
    )


def test_the_output_is_never_an_input(pack, hbpack, chats, tmp_path, tokenizer):
    folder = tmp_path / "in"
    folder.mkdir()
    shutil.copy(chats, folder)
    out = folder / "out"
    assert pack(folder, output=out).code == 0
    before = tree(out)
    done = pack(folder, output=out)
    assert "the shards are up to date" in done.stderr
    assert tree(out) == before
    for pattern in ("*", "**/*"):
        done = pack(folder / pattern, output=tmp_path / f"other{len(pattern)}")
        assert "tokenized 40 records: 40 samples" in done.stderr
    done = pack(out, output=tmp_path / "third")
    assert done.stderr == f"error: {out}: is an output of hbpack; name the data that it was made from\n"
    done = pack(out / "tokens", output=out)
    assert done.stderr == f"error: {out}/tokens: is in the output folder; name another output\n"


def test_damaged_sets_are_named(hbpack, pack, chats, tmp_path):
    out = tmp_path / "out"
    assert pack(chats).code == 0
    plan = (out / "plan.arrow").read_bytes()
    (out / "plan.arrow").write_bytes(plan[: len(plan) // 2])
    assert hbpack("stats", out) == (
        1,
        "",
        f"error: '{out}/plan.arrow' is damaged (Not an Arrow file); run hbpack plan again\n",
    )
    assert hbpack("write", out).code == 1
    (out / "tokens" / "tokens.json").write_text(json.dumps({"format": "else"}))
    done = hbpack("plan", out, "--groups", "1k", "--gpus", 1)
    assert (done.code, done.stderr) == (
        1,
        (
            f"error: '{out}/tokens/tokens.json' is damaged (it does not end with its checksum, so an earlier release "
            "wrote it, or it was changed); tokenize again\n"
        ),
    )
