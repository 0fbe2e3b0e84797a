"""Predicted seconds of an epoch, and where the GPUs' time goes.

::

    plan + GpuModel -> slots.py  seconds of every micro-batch, by part; layers.py says what is recomputed
                    -> epoch.py  iterations (all ranks meet), steps (pipeline, optimizer), the epoch
                    -> figures.py  JSON values for reports

Assumed: all ranks meet in every iteration, as with ZeRO-3 or FSDP, whose collectives need every rank; the loader is
never waited for; ranks differ in nothing but their own micro-batches.
"""
