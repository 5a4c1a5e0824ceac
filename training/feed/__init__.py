"""DeltaFeed: one pinned version as batches, every row exactly once per epoch. Start: `feed.DeltaFeed`.

version --plan_builder--> FeedPlan --reading--> row groups --rank_batches--> rows --image_rows, decode--> images

A lane is one of the sequences of rows that an epoch interleaves; `plan.epoch_order` has the rule.
"""

from .adapters import petastorm_names

petastorm_names.install()  # so that `import lakelens.training.feed` before Petastorm's own imports makes them work
