"""A condition that cannot be analysed or computed is an error of ours that names its columns."""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakelens.errors import InvalidArgumentError
from lakelens.etl.model import schema
from lakelens.etl.spark.failures import condition_named

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def rows(spark, tmp_path_factory):
    """A row with the types of an image table."""
    row = {"path": "file:///cat/1.jpg", "label": 0, "split": "train"}
    row |= {"height": 16, "width": 16, "source_modified": datetime(2026, 1, 1)}
    place = tmp_path_factory.mktemp("conditions") / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([row], pa.schema([schema.IMAGE_TABLE.field(name) for name in row])), place)
    spark.udf.register("beheaded", lambda path: path[1 // 0 :], "string")
    return spark.read.parquet(str(place))


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("colour = 'red'", "colour"),
        ("path = (", "is not a condition"),
        # Values of another type, with the column and both types
        ("height = 'tall'", "two types: 'tall' is a STRING, and not a BIGINT. In the table height is int"),
        ("split IN (5, 6)", "'train' is a STRING, and not a BIGINT. In the table split is string"),
        ("source_modified BETWEEN 'then' AND 'now'", "'then' is a STRING, .* source_modified is timestamp"),
        # What Spark, Java or a Python worker raises once the condition is computed
        ("width % (height - height) = 0", "BY_ZERO.* height is int, width is int"),
        ("path RLIKE '[a'", "PATTERN|PatternSyntax"),
        ("(SELECT explode(array(1, 2))) = label", "More than one row"),
        ("java_method('java.net.URI', 'create', ':') = ''", "URISyntaxException: Expected scheme name"),
        ("beheaded(path) = ''", "ZeroDivisionError: integer division"),
    ],
)
def test_a_wrong_condition_is_named(rows, where, words):
    with pytest.raises(InvalidArgumentError, match=words), condition_named(rows, where):
        rows.where(where).count()
