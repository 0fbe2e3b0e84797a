"""Which length groups make an epoch shortest: HBP's algorithm 1, and a search over the lengths themselves.

    lengths -> LengthSums -\
    GpuModel  -> settings --> EpochModel -> search (dynamic program) -> Choice: groups, seconds, alternatives
    profile   -> settings --> hbp_groups (algorithm 1) ------------/
"""
