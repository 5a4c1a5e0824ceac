"""The annotations of a source: Pascal VOC, COCO and manifests become one record per image. Pure.

Start: `record.Annotation`; boxes are half-open intervals of pixels (see `boxes`).
"""
