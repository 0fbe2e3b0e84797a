"""Predicts the seconds of an epoch, and where the GPUs' time goes.

::

    plan + GpuModel -> epoch.py     seconds of every micro-batch, by part, and what is recomputed; iterations (all
                                    ranks meet), steps (pipeline, optimizer), the epoch; parts of the time
                    -> figures.py   JSON values for reports
                    -> timeline.py  when each GPU does what

Assumptions: all ranks wait for each other in every iteration, as with ZeRO-3 or FSDP, whose collectives need every
rank; no rank waits for the loader; ranks differ only in their micro-batches.
"""
