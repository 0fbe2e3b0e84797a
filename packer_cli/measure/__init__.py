"""The measurements of `hbpack profile`, with torch.

`profile` measures iterations of the user's model on the available GPUs.

::

    kernels.py    attention of a packed row: flash-attn, torch's varlen, or one SDPA a sample; its own time
    subject.py    the model to measure, transformers' or in plain torch: forward and backward of a packed row
    device.py     GPU or CPU: clock, peak memory, out of memory
    run.py        chooses the settings to measure, and builds the profile
"""

import packer_cli.loader.parallel  # noqa: F401  (the loader says what to install where torch is missing)
