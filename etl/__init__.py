"""Images into versioned Delta tables. Door: `image_table.ImageTable`.

The rooms, each of which imports only from those to its right:

    image_table > ingest > profile > versions > changes > sources > quarantine > commit > log
                > spark, annotations > files, images > model
"""
