"""What a JPEG quality costs and keeps, and what a filter does: bytes beside SSIM and PSNR, at 299 pixels.

    python -m benchmarks.quality [--photographs 200] [--json] [--folder KEPT]

Each photograph is decoded and scaled as an ingest does it, encoded with each quality and chroma subsampling, decoded
again and compared with what was encoded. SSIM is that of brightness: Z. Wang et al., "Image Quality Assessment: From
Error Visibility to Structural Similarity", IEEE Transactions on Image Processing, 2004. Chroma PSNR is that of the two
colour channels together. Each filter's scaled image, before encoding, is compared with that of the sharpest. Nothing
is timed but the encoder's and the filter's own processor time.
"""

from __future__ import annotations

import io
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import photographs as photos
from .harness import Report, parser, positive, rounded, scratch, tell

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image

SIZE = 299
QUALITIES = (75, 80, 85, 90, 92, 95)
SUBSAMPLINGS = ("4:2:0", "4:4:4")
_SIGMA = 1.5
_TRUNCATE = 3.5  # a window of 11 pixels, as in the paper
_C1, _C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2


def ssim(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Mean structural similarity of two images of one channel, 0-255."""
    from scipy.ndimage import gaussian_filter

    def blurred(values: NDArray[np.float64]) -> NDArray[np.float64]:
        result: NDArray[np.float64] = gaussian_filter(values, _SIGMA, truncate=_TRUNCATE)
        return result

    mean_one, mean_other = blurred(one), blurred(other)
    variance_one = blurred(one * one) - mean_one**2
    variance_other = blurred(other * other) - mean_other**2
    covariance = blurred(one * other) - mean_one * mean_other
    likeness = (2 * mean_one * mean_other + _C1) * (2 * covariance + _C2)
    return float((likeness / ((mean_one**2 + mean_other**2 + _C1) * (variance_one + variance_other + _C2))).mean())


def psnr(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Peak signal-to-noise ratio in decibels; 100 for equal images."""
    error = float(((one - other) ** 2).mean())
    return 100.0 if error == 0 else float(10 * np.log10(255**2 / error))


def compare(image: Image.Image, quality: int, subsampling: str) -> dict[str, float]:
    """Encodes an RGB image and compares what is decoded from it."""
    from PIL import Image as Pillow

    buffer = io.BytesIO()
    started = time.process_time()
    image.save(buffer, "JPEG", quality=quality, subsampling=subsampling)
    encoding_s = time.process_time() - started
    shown = Pillow.open(buffer).convert("RGB")
    before = np.asarray(image.convert("YCbCr"), dtype=np.float64)
    after = np.asarray(shown.convert("YCbCr"), dtype=np.float64)
    return {
        "bytes": len(buffer.getvalue()),
        "ssim": ssim(before[..., 0], after[..., 0]),
        "psnr_db": psnr(np.asarray(image, dtype=np.float64), np.asarray(shown, dtype=np.float64)),
        "chroma_psnr_db": psnr(before[..., 1:], after[..., 1:]),
        "encoding_ms": 1000 * encoding_s,
    }


def scaled_by(image: Image.Image, resample: str) -> Image.Image:
    """Scales an RGB image with a filter as an ingest does."""
    from lakelens.etl.images.encoding import place_image
    from lakelens.etl.images.geometry import place

    return place_image(image, place("fit", *image.size, SIZE), resample=resample)


def compare_filter(source: Image.Image, image: Image.Image, resample: str) -> dict[str, float]:
    """Scales an RGB image with a filter, and compares it with what the ingest's own filter has made of it."""
    started = time.process_time()
    scaled = scaled_by(source, resample)
    scaling_s = time.process_time() - started
    before = np.asarray(image.convert("L"), dtype=np.float64)
    after = np.asarray(scaled.convert("L"), dtype=np.float64)
    return {
        "ssim": ssim(before, after),
        "psnr_db": psnr(np.asarray(image, dtype=np.float64), np.asarray(scaled, dtype=np.float64)),
        "scaling_ms": 1000 * scaling_s,
    }


def run(arguments: Any) -> Report:
    """Runs the benchmark."""
    from lakelens.etl.images.codec import decode_source
    from lakelens.etl.images.encoding import RESAMPLINGS

    report = Report("quality", {"photographs": arguments.photographs, "size": SIZE})
    with scratch(arguments.folder) as (kept, _):
        found = photos.photographs(kept, arguments.photographs)
        values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        filtered: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        tell(f"comparing {len(QUALITIES) * len(SUBSAMPLINGS)} settings")
        for path in photos.files(found):
            source = decode_source(Path(path).read_bytes(), target_size=SIZE).image
            image = scaled_by(source, RESAMPLINGS[0])
            for resample in RESAMPLINGS:
                for name, value in compare_filter(source, image, resample).items():
                    filtered[resample][name].append(value)
            for subsampling in SUBSAMPLINGS:
                for quality in QUALITIES:
                    for name, value in compare(image, quality, subsampling).items():
                        values[f"{subsampling} {quality}"][name].append(value)
    for setting, measured in values.items():
        report.facts[setting] = {
            "bytes": round(statistics.mean(measured["bytes"])),
            "of the source": rounded(sum(measured["bytes"]) / found.bytes, 3),
            "ssim": rounded(statistics.mean(measured["ssim"])),
            "worst ssim": rounded(min(measured["ssim"])),
            "psnr_db": rounded(statistics.mean(measured["psnr_db"]), 3),
            "chroma_psnr_db": rounded(statistics.mean(measured["chroma_psnr_db"]), 3),
            "encoding_ms": rounded(statistics.median(measured["encoding_ms"]), 3),
        }
    for resample, measured in filtered.items():
        report.facts[f"{resample} beside {RESAMPLINGS[0]}"] = {
            "ssim": rounded(statistics.mean(measured["ssim"])),
            "worst ssim": rounded(min(measured["ssim"])),
            "psnr_db": rounded(statistics.mean(measured["psnr_db"]), 3),
            "scaling_ms": rounded(statistics.median(measured["scaling_ms"]), 3),
        }
    return report


def main(argv: list[str] | None = None) -> int:
    """Runs the command."""
    flags = parser("JPEG quality beside bytes, at 299 pixels.", repeats=None)
    flags.add_argument("--photographs", type=positive, default=200, help="how many photographs")
    arguments = flags.parse_args(argv)
    run(arguments).show(arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
