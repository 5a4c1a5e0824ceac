"""Images into versioned Delta tables. Entry point: `image_table.ImageTable`.

The packages, each of which imports only from those to its right:

    image_table > ingest > profile > versions > changes > sources > quarantine > commit
                > spark, annotations > files, images > model
"""
