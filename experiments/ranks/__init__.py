"""Several ranks in one arm: one process for each rank, supervised and judged as one process.

The process that the executor started becomes the supervisor (:mod:`.group`); it forks the ranks,
each of which does the whole task with its own shard of the global batch (:mod:`.rank_worker`) under
data parallelism with ZeRO-1 (:mod:`.parallel`). What the ranks leave is one result again
(:mod:`.merge`): the slowest rank's step time, unless they disagree (:mod:`.agreement`).
"""
