"""A wait at the end of torchrun's processes, which import this at their start.

Gloo's threads let go of their last work after the process that waited for it has gone on. If that one ends meanwhile,
torch 2.13 aborts it (`terminate called without an active exception`), on busy cores every fourth time, and also after
`destroy_process_group`.
"""

import atexit
import sys
import time

SECONDS = 0.3


@atexit.register
def wait() -> None:
    """Let threads of Gloo end their work."""
    if "torch.distributed" in sys.modules:
        time.sleep(SECONDS)
