"""One source file becomes one stored image, and a stored image becomes pixels again. Pillow only.

    bytes --codec--> upright RGB --geometry--> target size --stored_image--> JPEG or raw RGB, by a `Recipe`

Start: `isolated_decoder.IsolatedDecoder`, which does this in a child process that a bad file may crash.
"""
