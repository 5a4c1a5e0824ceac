"""DeltaFeed: one pinned version as batches, every row exactly once per epoch. Start: `feed.DeltaFeed`.

version --plan_builder--> FeedPlan --reading--> row groups --rank_batches--> rows --image_rows, image_batches--> images

A lane is one of the sequences of rows that an epoch interleaves; `plan.epoch_order` has the rule.
"""
