"""`hbpack verify`: whether a packed set is complete and as it was written, and agrees with its plan and its tokens.

::

    verifier.py  runs all checks, skips the checks that a damaged file makes pointless, and reports the damage
    checks.py    the plan holds each sample once, within the rules of `plan.core.check`; the ranks read each pack once
                 in each epoch; the packs in the shards are the plan's, and their tokens the token store's

The checksums of the files are compared by `shards.repair`, which also repairs the files that it finds damaged.
"""
