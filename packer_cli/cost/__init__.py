"""Predicts what an iteration costs in seconds and bytes, from a model's shape and a GPU's data, or from measurements.

::

    config.json + GPU -> analytic \\
                                    -> CostModel, MemoryModel -> groups, simulate, --cost (plans)
    hbpack profile    -> measured /
"""
