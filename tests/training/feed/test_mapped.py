"""Values that are read where they lie in the file are those that pyarrow reads; all others are left to it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from feed_tables import write_numbers
from hypothesis import given, settings
from hypothesis import strategies as st

from lakelens import DeltaFeed
from lakelens.training.feed.reading.mapped import map_column

pytestmark = pytest.mark.unit

ROWS = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("mapped")


def values_of(nulls: float, seed: int = 0) -> list[bytes | None]:
    random = np.random.default_rng(seed)
    return [None if random.random() < nulls else random.bytes(int(random.integers(0, 20_000))) for _ in range(ROWS)]


def written(path: Path, values: list[bytes | None], **options) -> Path:
    fields = [pa.field("number", pa.int32()), pa.field("image", pa.binary(), options.pop("nullable", True))]
    table = pa.Table.from_arrays(
        [pa.array(range(len(values)), pa.int32()), pa.array(values, pa.binary())], schema=pa.schema(fields)
    )
    pq.write_table(table, path, **{"compression": "NONE", "use_dictionary": False, **options})
    return path


def mapped(path: Path, row_group: int = 0, first: int = 0, last: int = ROWS, footer: pq.FileMetaData | None = None):
    return map_column(str(path), footer or pq.read_metadata(path), row_group, "image", first, last)


def read(column, count: int) -> list[bytes | None]:
    views = [column.at(row) for row in range(count)]
    return [None if view is None else view.tobytes() for view in views]


@given(
    st.sampled_from([0.0, 0.3, 0.6]),
    st.booleans(),
    st.sampled_from(["1.0", "2.0"]),
    st.sampled_from([1, 30_000, 1 << 20]),
    st.integers(0, 5),
    st.data(),
)
@settings(max_examples=40, deadline=None)
def test_any_rows_of_any_pages_are_those_that_pyarrow_reads(folder, nulls, nullable, version, page, seed, data):
    values = values_of(nulls if nullable else 0.0, seed)
    path = written(
        folder / "any.parquet",
        values,
        nullable=nullable,
        data_page_version=version,
        data_page_size=page,
        write_batch_size=4,
        row_group_size=25,
    )
    first = data.draw(st.integers(0, 24))
    last = data.draw(st.integers(first + 1, 25))
    assert read(mapped(path, 0, first, last), last - first) == values[first:last]
    assert read(mapped(path, 1, 0, 15), 15) == values[25:]


def mapped_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssFile"))


def test_some_rows_of_a_large_row_group_do_not_count_as_memory_with_the_rest_of_it(folder):
    values = [bytes([number]) * (1 << 20) for number in range(64)]
    path = written(folder / "large.parquet", values, write_batch_size=64, data_page_size=1 << 30)
    mapped(path)
    before = mapped_bytes()
    column = mapped(path, last=64)
    assert mapped_bytes() - before < 8 << 20, "a walk through the lengths left the chunk mapped"
    assert read(column, 64) == values
    assert mapped_bytes() - before > 48 << 20, "the pages that are read are counted, else this test sees nothing"


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "SNAPPY"},
        {"compression": "ZSTD", "data_page_version": "2.0"},
        {"use_dictionary": True},
        {"column_encoding": {"image": "DELTA_LENGTH_BYTE_ARRAY"}},
    ],
)
def test_what_is_not_stored_as_it_is_is_left_to_pyarrow(folder, options):
    assert mapped(written(folder / "other.parquet", values_of(0.1), **options)) is None


def test_small_values_object_stores_and_other_file_systems_are_left_to_pyarrow(folder):
    path = written(folder / "plain.parquet", values_of(0.0))
    footer = pq.read_metadata(path)
    assert mapped(path) is not None
    assert mapped(written(folder / "small.parquet", [b"abc"] * ROWS)) is None
    assert map_column("s3://bucket/plain.parquet", footer, 0, "image", 0, ROWS) is None
    assert map_column("/proc/self/status", footer, 0, "image", 0, ROWS) is None
    assert map_column(str(path), footer, 0, "number", 0, ROWS) is None
    with pytest.raises(FileNotFoundError):
        map_column(str(folder / "gone.parquet"), footer, 0, "image", 0, ROWS)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_damaged_pages_are_left_to_pyarrow_or_give_values_from_within_the_file(folder, version):
    path = written(folder / "damaged.parquet", values_of(0.2), data_page_version=version, data_page_size=30_000)
    footer, whole = pq.read_metadata(path), path.read_bytes()
    start = footer.row_group(0).column(1).data_page_offset
    random = np.random.default_rng(1)
    for place in [*range(start, start + 60), *random.integers(start, len(whole), 100).tolist()]:
        path.write_bytes(whole[:place] + random.bytes(1) + whole[place + 1 :])
        column = mapped(path, footer=footer)
        assert column is None or all(value is None or len(value) <= len(whole) for value in read(column, ROWS))
    path.write_bytes(whole[: start + 1000])
    assert mapped(path, footer=footer) is None


def test_values_stay_readable_after_their_file_has_gone(folder):
    values = values_of(0.1)
    path = written(folder / "unlinked.parquet", values)
    column = mapped(path)
    path.unlink()
    assert read(column, ROWS) == values


def test_large_images_of_a_feed_are_not_read_into_memory(tmp_path):
    feed = DeltaFeed(write_numbers(tmp_path / "t", [200] * 3, 200, 50_000), seed=3)
    before, most, seen = pa.total_allocated_bytes(), 0, []
    for columns, _ in feed.as_column_numpy(8, 0, 1, columns=["label", "image"]):
        assert [image[:2] for image in columns["image"]] == [bytes([n % 251]) * 2 for n in columns["label"]]
        seen += columns["label"].tolist()
        most = max(most, pa.total_allocated_bytes() - before)
    assert sorted(seen) == list(range(600))
    assert most < 1 << 20  # of 30 MB
