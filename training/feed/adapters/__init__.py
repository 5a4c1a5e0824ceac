"""The feed for code that is written for Petastorm: its Reader, its schemas and its transforms, over a pinned version.

Start: `DeltaFeed.petastorm_reader`, `lakelens.make_delta_converter`, `lakelens.decode_images`. Petastorm's own
`make_petastorm_dataset` and its PyTorch loaders take the reader; rows are read and ordered by the feed alone.
"""
