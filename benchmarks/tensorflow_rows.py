"""A table's rows as TensorFlow's users read them: TFRecord files, and the copy of Petastorm's converter."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .sparks import OnSpark, stored_columns

FILES = 8
_SHUFFLE_ROWS = 1024


def decode_jpeg(encoded: Any, side: int) -> Any:
    """Decodes one JPEG to the pixels that lakelens gives."""
    import tensorflow as tf

    return tf.ensure_shape(tf.io.decode_jpeg(encoded, channels=3, dct_method="INTEGER_ACCURATE"), (side, side, 3))


def write_tfrecords(table: str | Path, folder: Path) -> list[str]:
    """Writes the rows of a table to TFRecord files; gives their paths."""
    import tensorflow as tf

    images, labels = stored_columns(table, "image", "label")
    folder.mkdir(exist_ok=True)
    paths = [str(folder / f"{part}.tfrecord") for part in range(FILES)]
    for part, path in enumerate(paths):
        with tf.io.TFRecordWriter(path) as writer:
            for image, label in zip(images[part::FILES], labels[part::FILES], strict=True):
                features = {
                    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())
    return paths


def read_tfrecords(paths: list[str], decode: Callable[[Any], Any], epochs: int | None) -> Any:
    """Reads rows of TFRecord files, shuffled and decoded; without end if `epochs` is None."""
    import tensorflow as tf

    features = {"image": tf.io.FixedLenFeature((), tf.string), "label": tf.io.FixedLenFeature((), tf.int64)}

    def read(record: Any) -> tuple[Any, Any]:
        row = tf.io.parse_single_example(record, features)
        return decode(row["image"]), row["label"]

    files = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths))
    records = files.interleave(tf.data.TFRecordDataset, cycle_length=FILES, num_parallel_calls=tf.data.AUTOTUNE)
    shuffled = records.shuffle(_SHUFFLE_ROWS).repeat(epochs)
    return shuffled.map(read, num_parallel_calls=tf.data.AUTOTUNE)


class Converted(OnSpark):
    """Petastorm's converter, which writes a copy of a table's rows first; its Spark session is warm."""

    def __init__(self, folder: str) -> None:
        from petastorm.spark import SparkDatasetConverter

        super().__init__(folder)
        self.spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, (self.folder / "cache").as_uri())
        self.converter: Any = None

    def convert(self, table: str, files: int | None = None) -> Any:
        """Writes the copy again; gives the converter."""
        from petastorm.spark import make_spark_converter

        self.forget()
        rows = self.spark.read.format("delta").load(table).select("image", "label")
        self.converter = make_spark_converter(rows if files is None else rows.repartition(files))
        return self.converter

    def forget(self) -> None:
        """Removes the copy."""
        if self.converter is not None:
            self.converter.delete()
            self.converter = None

    def close(self) -> None:
        """Removes the copy and ends the session."""
        self.forget()
        super().close()


def take(batches: Iterator[Any]) -> dict[str, Any]:
    """Takes every batch and times it from the first batch on."""
    started = time.perf_counter()
    first_at = started
    rows = first_rows = checksum = 0
    for number, images in enumerate(batches):
        count = int(images.shape[0])
        checksum += int(memoryview(images)[0, 0, 0, 0])  # TensorFlow's slicing would cost more than some contenders
        if number == 0:
            first_at, first_rows = time.perf_counter(), count
        rows += count
    after_s = max(time.perf_counter() - first_at, 1e-9)
    return {"rows": rows, "checksum": checksum, "images_s": (rows - first_rows) / after_s}
