"""What a source says about its images: Pascal VOC, COCO and manifests become one record per image. Pure.

Start: `record.Annotation`; boxes are in pixels, with both corners inside (see `boxes`).
"""
