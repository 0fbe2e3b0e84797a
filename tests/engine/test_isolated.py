"""Tasks in processes of their own, where nobody waits for them any longer."""

from __future__ import annotations

import multiprocessing

from packer_cli.engine.processes import _serve


def test_a_task_that_nobody_waits_for_ends_in_silence(capfd):
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,))
    process.start()
    theirs.close()
    ours.send((abs, -1))
    ours.close()
    process.join(60)
    assert process.exitcode == 0
    assert capfd.readouterr().err == ""
