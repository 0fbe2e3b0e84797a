"""Numba kernels that several packings and strategies share, each over flat arrays.

A kernel that takes a function as an argument, such as a load, runs as fast as one that spells it out, but numba never
finds it in its cache: it compiles again in every process, for longer than a million samples take to plan. So loads are
data (`linear`, `rates`), and kernels whose loads are no sums (pipelines of Hydraulis and WLB-LLM) stand by themselves.
"""
