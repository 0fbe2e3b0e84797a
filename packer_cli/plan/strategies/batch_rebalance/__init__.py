"""transformers' `train_sampling_strategy="batch_rebalance"` (`BatchRebalanceSampler`, 5.23), as a row of a comparison.

A step has as many random samples as its tokens over their mean length. Sorted by length, they are cut into batches,
one for each rank and micro-batch, each padded to its longest sample. The cuts move one sample at a time, from the
batch of the greatest cost to that of the least, `B L + 0.001 B L^2` for B samples of at most L tokens, and the best
ones seen stay. Batches of like cost share an iteration. A user chooses the number of micro-batches; here it is the
least in which every batch fits its row. Price: O(n K) for n samples and K batches, times the numbers of micro-batches
that are tried.

::

    strategy.py  what the rest of hbpack sees
    steps.py     the batches of each step: kernels
"""
