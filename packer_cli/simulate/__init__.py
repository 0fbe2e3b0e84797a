"""Predicts the seconds of an epoch, and where the GPUs' time goes.

::

    plan + GpuModel -> slots.py  seconds of every micro-batch, by part, and what is recomputed
                    -> epoch.py  iterations (all ranks meet), steps (pipeline, optimizer), the epoch; parts of the time
                    -> figures.py  JSON values for reports

Assumptions: all ranks wait for each other in every iteration, as with ZeRO-3 or FSDP, whose collectives need every
rank; no rank waits for the loader; ranks differ only in their micro-batches.
"""
