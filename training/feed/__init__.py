"""DeltaFeed: one pinned version as batches, every row exactly once per epoch. Start: `feed.DeltaFeed`.

version --plan_builder--> plan --reading--> row groups --rank_batches--> rows --image_rows, decode--> images
"""
