"""Small files that cost a decoder much: real ones, nothing is patched."""

from __future__ import annotations

import math
import struct
import zlib


def jpeg_of_many_scans(side: int = 6000, scans: int = 20_000) -> bytes:
    """A progressive JPEG whose scans change nothing, and each of which makes the decoder visit every block.

    With the values given by default it has 1.2 MB and takes minutes of processor time.
    """
    blocks = math.ceil(side / 8) ** 2
    # The only symbol of the table ends the band in 2 ** 14 blocks and as many more as the 14 bits after it say.
    run = "0" + "10" * 7
    bits = run * math.ceil(blocks / (2**14 + int(run, 2)))
    ac_scan = _segment(0xDA, bytes([1, 1, 0, 1, 63, 0])) + _packed(bits)
    return b"".join(
        [
            b"\xff\xd8",
            _segment(0xDB, bytes([0]) + bytes([1]) * 64),
            _segment(0xC2, struct.pack(">BHHBBBB", 8, side, side, 1, 1, 0x11, 0)),
            _segment(0xC4, bytes([0x00, 1, *[0] * 15, 0x00])),
            _segment(0xC4, bytes([0x10, 1, *[0] * 15, 0xE0])),
            _segment(0xDA, bytes([1, 1, 0, 0, 0, 0])) + _packed("0" * blocks),
            ac_scan * scans,
            b"\xff\xd9",
        ]
    )


def png_of(width: int, height: int) -> bytes:
    """A black PNG of 8-bit RGB, about a thousandth of its pixels' size."""
    packer = zlib.compressobj(1)
    row = bytes(1 + 3 * width)
    body = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", body) + png_chunk(b"IEND", b"")


def png_that_claims(width: int, height: int) -> bytes:
    """A PNG with a header alone worth reading."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = png_chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + body + png_chunk(b"IEND", b"")


def _segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def _packed(bits: str) -> bytes:
    """Packs bits as entropy-coded data, filled with ones; no byte of 255 without the zero that has to follow it."""
    bits += "1" * (-len(bits) % 8)
    data = int(bits, 2).to_bytes(len(bits) // 8, "big")
    return data.replace(b"\xff", b"\xff\x00")


def png_chunk(kind: bytes, body: bytes) -> bytes:
    """A chunk of a PNG with its length and its checksum."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
