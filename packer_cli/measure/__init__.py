"""The measurements of `hbpack profile`, with torch.

`profile` measures iterations of the user's model on the available GPUs.

::

    kernels.py    attention of a packed row: flash-attn, torch's varlen, or one SDPA a sample; its own time
    subject.py    the model to measure, transformers' or in plain torch: forward and backward of a packed row
    device.py     GPU or CPU: clock, peak memory, out of memory
    run.py        chooses the settings to measure, and builds the profile
"""

try:
    import torch  # noqa: F401  (only for a clear message)
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError("this command needs torch: pip install 'hbpack[torch]'") from None
