"""What an iteration costs: seconds and bytes, from a model's shape and a GPU's data, or measured.

::

    config.json + GPU -> analytic \\
                                    -> CostModel, MemoryModel -> groups, simulate, --cost (plans)
    hbpack profile    -> measured /
"""
