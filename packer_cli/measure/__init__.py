"""What `hbpack profile` and `hbpack bench-loader` run, with torch.

`profile` measures iterations of the user's model on the GPUs at hand.

::

    kernels.py    attention of a packed row: flash-attn, torch's varlen, or one SDPA a sample
    decoder.py    a stack of decoder layers in plain torch
    subject.py    the model to measure, transformers' or plain: forward and backward of a packed row
    device.py     GPU or CPU: clock, peak memory, running out of it
    attention.py  the attention kernel alone
    run.py        which settings are measured, and the profile that comes out
    reading/      how fast the loader reads a set
"""

try:
    import torch  # noqa: F401  (only to say plainly what is missing)
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError("this command needs torch: pip install 'hbpack[torch]'") from None
