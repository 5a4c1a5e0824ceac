"""Opening Parquet files: whole ones, those of newer writers, and refusals that name the file."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from arro3.core import Array, DataType, Field, RecordBatch, Schema, Table
from deltalake import write_deltalake

from lakelens.errors import DataFileError
from lakelens.stores.data_files import open_parquet_file

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("kept", [0, 3, 100, -1])
def test_a_truncated_file_is_refused_by_name(tmp_path, kept):
    whole, cut = tmp_path / "whole.parquet", tmp_path / "cut.parquet"
    pq.write_table(pa.table({"label": range(1000)}), whole)
    cut.write_bytes(whole.read_bytes()[:kept])
    with pytest.raises(DataFileError, match=r"cut\.parquet cannot be read as Parquet: .*cut short"):
        with open_parquet_file(str(cut)):
            pass


def test_pages_that_are_damaged_are_refused_by_name_while_they_are_read(tmp_path):
    path = tmp_path / "damaged.parquet"
    pq.write_table(pa.table({"label": range(1000)}), path, compression="zstd")
    data = bytearray(path.read_bytes())
    data[4:600] = bytes(596)
    path.write_bytes(data)
    with pytest.raises(DataFileError, match=r"damaged\.parquet cannot be read as Parquet"):
        with open_parquet_file(str(path)) as parquet:
            parquet.read()


def test_a_file_that_is_gone_stays_a_file_that_is_not_found(tmp_path):
    with pytest.raises(FileNotFoundError):
        with open_parquet_file(str(tmp_path / "gone.parquet")):
            pass


def test_files_with_view_types_of_newer_arrow_are_read_by_their_parquet_types(tmp_path):
    columns = {
        "image": Array([b"ab" * 20, b"c", None], DataType.binary_view()),
        "name": Array(["x" * 30, None, "y"], DataType.string_view()),
        "label": Array([1, 2, 3], DataType.int32()),
    }
    schema = Schema([Field(name, column.type) for name, column in columns.items()])
    batch = RecordBatch.from_arrays(list(columns.values()), schema=schema)
    write_deltalake(str(tmp_path / "t"), Table.from_batches([batch]))  # as from polars or arro3 data
    (path,) = (tmp_path / "t").glob("*.parquet")
    with open_parquet_file(str(path)) as parquet:
        read = parquet.read()
        first = parquet.read_row_group(0, columns=["label"])
    assert read.schema.types == [pa.binary(), pa.string(), pa.int32()]
    assert read.to_pydict() == {"image": [b"ab" * 20, b"c", None], "name": ["x" * 30, None, "y"], "label": [1, 2, 3]}
    assert first.num_rows == 3
