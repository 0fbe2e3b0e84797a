"""Tasks in processes of their own, where nobody waits for them any longer."""

from __future__ import annotations

import multiprocessing

from packer_cli.engine.isolated import _run


def test_a_task_that_nobody_waits_for_ends_in_silence(capfd):
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(sending, abs, -1))
    receiving.close()
    process.start()
    sending.close()
    process.join(60)
    assert process.exitcode == 0
    assert capfd.readouterr().err == ""
