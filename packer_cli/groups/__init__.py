"""Choose the length groups that make an epoch shortest, by HBP's algorithm 1 or by a search over the lengths.

    lengths -> LengthSums -\
    GpuModel  -> settings --> EpochModel -> search (dynamic program) -> Choice: groups, seconds, alternatives
    profile   -> settings --> hbp_groups (algorithm 1) ------------/
"""
