"""`DeltaFeed.petastorm_reader`: the contract of Petastorm's Reader, exact shards, transforms, and what is refused."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from feed_tables import append, changed, colour_of, encoded, image_rows
from petastorm.ngram import NGram
from petastorm.transform import TransformSpec
from petastorm.unischema import Unischema, UnischemaField

import lakelens
from lakelens import DeltaFeed
from lakelens.errors import BadRowError, FeedError, InvalidArgumentError, NotSupportedError

pytestmark = pytest.mark.unit

ROWS = 91
LABEL_FIELD = UnischemaField("label", np.int32, (), None, False)


@pytest.fixture(scope="module")
def feed(uneven) -> DeltaFeed:
    return DeltaFeed(uneven, split="train", seed=3)


def labels(feed: DeltaFeed, **options) -> list[int]:
    with feed.petastorm_reader(["label"], **options) as reader:
        return [label for item in reader for label in item.label.tolist()]


def test_the_reader_keeps_the_contract_of_petastorms_reader(feed):
    reader = feed.petastorm_reader(["label", "image"], batch_size=40)
    assert (reader.ngram, reader.batched_output, reader.last_row_consumed) == (None, True, False)
    assert isinstance(reader.schema, Unischema)
    assert [(f.name, f.numpy_dtype, f.shape) for f in reader.schema.fields.values()] == [
        ("image", np.bytes_, ()),
        ("label", np.int32, ()),
    ]
    with reader:
        items = list(reader)
        assert [len(item.label) for item in items] == [40, 40, 11]
        assert isinstance(items[0], tuple)
        assert items[0]._fields == ("image", "label")
        assert isinstance(items[0].image[0], bytes)
        assert reader.last_row_consumed
        assert reader.schema.make_namedtuple(image=1, label=2) == (1, 2)
    with pytest.raises(FeedError, match="was stopped; make a new one"):
        next(reader)


def test_each_row_is_in_one_shard_of_an_epoch_and_shards_differ_by_one_row_at_most(feed):
    found = [labels(feed, cur_shard=shard, shard_count=8) for shard in range(8)]
    assert sorted(label for shard in found for label in shard) == list(range(ROWS))
    assert max(map(len, found)) - min(map(len, found)) <= 1


def test_reset_at_the_end_goes_on_with_the_next_epochs_and_is_refused_before(feed):
    with feed.petastorm_reader(["label"], batch_size=50) as reader:
        first = next(reader).label.tolist()
        with pytest.raises(NotSupportedError, match="the data has not ended"):
            reader.reset()
        first += [label for item in reader for label in item.label.tolist()]
        reader.reset()
        assert not reader.last_row_consumed
        second = [label for item in reader for label in item.label.tolist()]
    assert first + second == labels(feed, num_epochs=2)


def test_columns_are_named_also_by_patterns_and_by_fields(feed):
    with feed.petastorm_reader([LABEL_FIELD, "(hei|wid).*"]) as reader:
        assert list(reader.schema.fields) == ["height", "width", "label"]


def test_images_of_each_form_are_decoded_to_the_pixels_of_the_feed_as_frames_too(tmp_path):
    for n, form in enumerate(("jpeg", "png", "raw_rgb")):
        append(tmp_path / "t", image_rows(range(8 * n, 8 * n + 8), form))
    feed, spec = DeltaFeed(tmp_path / "t"), lakelens.decode_images(6, 8)
    images, numbers, _ = next(feed.as_numpy(24, dtype="uint8", image_size=(6, 8)))
    expected = dict(zip(numbers.tolist(), images, strict=True))
    assert isinstance(spec, TransformSpec)
    with feed.petastorm_reader(["image", "label"], 2, transform_spec=spec, batch_size=5) as reader:
        field = reader.schema.fields["image"]
        assert (field.numpy_dtype, field.shape) == (np.uint8, (6, 8, 3))
        items = list(reader)
    assert set(items[0]._fields) == {"image", "label"}
    assert sum(len(item.label) for item in items) == 48
    for item in items:
        assert item.image.dtype == np.uint8
        for number, image in zip(item.label.tolist(), item.image, strict=True):
            assert np.array_equal(image, expected[number])
    decoded, large = spec.func(image_rows([7, 300]).to_pandas()).image
    assert np.array_equal(decoded, expected[7])
    assert np.abs(large.astype(int) - colour_of(300)).max() <= 6


def test_a_transform_of_frames_edits_adds_and_removes_columns(feed):
    def halves(frame: pd.DataFrame) -> pd.DataFrame:
        frame["half"] = [np.full((2, 3), number / 2) for number in frame.label]
        return frame

    spec = TransformSpec(halves, [("half", np.float32, (2, 3), False)], removed_fields=["image"])
    with feed.petastorm_reader(["image", "label"], transform_spec=spec, batch_size=20) as reader:
        assert list(reader.schema.fields) == ["label", "half"]
        items = list(reader)
    for item in items:
        assert item.half.dtype == np.float32
        assert item.half.shape == (len(item.label), 2, 3)
        assert (item.half[:, 1, 2] == item.label / 2).all()


def test_a_transform_without_a_function_selects_columns_in_its_order(feed):
    spec = TransformSpec(selected_fields=["label", "height"])
    with feed.petastorm_reader(["image", "label", "height"], transform_spec=spec) as reader:
        assert next(reader)._fields == ("label", "height")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"columns": ["lable"]}, r"has no column 'lable' \(did you mean 'label'\?\); it has path, image"),
        ({"columns": ["image", "nothing.*"]}, "has no column 'nothing"),
        ({"columns": "label"}, r"give a list of names, such as columns=\['label'\]"),
        ({"columns": []}, "name at least one column"),
        ({"cur_shard": 0}, "cur_shard=0, shard_count=None: give both or neither"),
        ({"shard_count": 2}, "cur_shard=None, shard_count=2: give both or neither"),
        ({"cur_shard": 2, "shard_count": 2}, "shards are whole numbers from 0 to shard_count - 1"),
        ({"cur_shard": 0, "shard_count": 2.0}, "shards are whole numbers"),
        ({"cur_shard": 0, "shard_count": 92}, "has 91 rows .* some shards would be empty"),
        ({"worker_count": 3}, "petastorm_reader has no option 'worker_count'; did you mean 'workers_count'"),
        ({"num_epochs": 0}, "num_epochs=0: give a whole number of at least 1"),
        ({"batch_size": 0}, "batch_size=0: give a whole number"),
        ({"drop_last": True}, "give batch_size too"),
        ({"drop_last": True, "batch_size": 92}, "no batch is left"),
        (
            {"transform_spec": TransformSpec(removed_fields=["imge"])},
            "removed_fields names 'imge', which is not one of",
        ),
        ({"transform_spec": TransformSpec(selected_fields=["lable"])}, "names 'lable', .*did you mean 'label'"),
        ({"columns": ["label"], "transform_spec": TransformSpec(removed_fields=["label"])}, "no column is left"),
        ({"columns": ["label"], "transform_spec": lakelens.decode_images(4, 4)}, "column 'image' is not one of"),
        ({"columns": NGram({0: [LABEL_FIELD]}, 1, LABEL_FIELD)}, "NGram.*windows of neighbouring rows do not exist"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_read(feed, arguments, said):
    with pytest.raises(InvalidArgumentError, match=said):
        feed.petastorm_reader(**arguments)


@pytest.mark.parametrize(
    ("function", "fields", "said"),
    [
        (lambda row: {"label": 1}, None, "gave dict; it is called with a pandas DataFrame"),
        (lambda frame: frame[["label"]], None, "gave the columns label, declared are image, label"),
        (
            lambda frame: frame.assign(label=[np.zeros(3)] * len(frame)),
            [("label", np.float32, (4,), False)],
            r"'label': a row has shape \[3\], expected is \[4\]",
        ),
    ],
)
def test_a_transform_that_breaks_its_contract_is_refused(feed, function, fields, said):
    with (
        feed.petastorm_reader(["image", "label"], transform_spec=TransformSpec(function, fields)) as reader,
        pytest.raises(InvalidArgumentError, match=said),
    ):
        next(reader)


def test_an_item_whose_rows_a_transform_has_all_left_out_is_empty_in_the_declared_shapes(feed):
    shapes = [("label", np.float32, (4,), False), ("boxes", np.int32, (None, 2), False)]
    spec = TransformSpec(lambda frame: frame.assign(boxes=None)[:0], shapes)
    with feed.petastorm_reader(["label"], transform_spec=spec) as reader:
        item = next(reader)
    assert (item.label.shape, item.label.dtype, item.boxes.shape) == ((0, 4), np.float32, (0, 0, 2))


def test_what_a_transform_raises_comes_out_and_the_data_does_not_seem_to_end(feed):
    def failing(frame: pd.DataFrame) -> pd.DataFrame:
        raise ZeroDivisionError("of the user")

    with feed.petastorm_reader(["label"], transform_spec=TransformSpec(failing)) as reader:
        with pytest.raises(ZeroDivisionError, match="of the user"):
            next(reader)
        with pytest.raises(FeedError, match="has failed before"):
            next(reader)
        assert not reader.last_row_consumed


def test_a_nested_column_has_no_tensor_form_unless_a_transform_gives_it_one(tmp_path):
    write_deltalake(str(tmp_path / "t"), pa.table({"boxes": [[{"x": 1}], []]}))
    feed = DeltaFeed(tmp_path / "t", shuffle=False, image_column=None, label_column=None)
    with pytest.raises(InvalidArgumentError, match=r"column 'boxes' .* has no tensor form"):
        feed.petastorm_reader(["boxes"])
    spec = TransformSpec(lambda frame: frame.assign(boxes=frame.boxes.map(len)), [("boxes", np.int64, (), False)])
    with feed.petastorm_reader(["boxes"], transform_spec=spec) as reader:
        assert next(reader).boxes.tolist() == [1, 0]


def test_a_null_is_an_error_that_names_the_row_unless_something_stands_for_it(tmp_path):
    rows = pa.table({"label": pa.array([1, None, 3], pa.int32())})
    write_deltalake(str(tmp_path / "t"), rows)
    feed = DeltaFeed(tmp_path / "t", shuffle=False, image_column=None, label_column=None)
    with feed.petastorm_reader() as reader, pytest.raises(BadRowError, match=r"row 1 of .* is null in column 'label'"):
        next(reader)
    with feed.petastorm_reader(fill={"label": -1}) as reader:
        assert next(reader).label.tolist() == [1, -1, 3]


def test_a_row_that_does_not_decode_is_named(tmp_path):
    append(tmp_path / "t", changed(image_rows(range(5)), image=[*map(encoded, range(3)), b"no image", encoded(4)]))
    feed = DeltaFeed(tmp_path / "t", shuffle=False)
    with (
        feed.petastorm_reader(["image"], transform_spec=lakelens.decode_images(4, 4)) as reader,
        pytest.raises(BadRowError, match=r"row 3 of .*parquet does not decode to 4 x 4 pixels"),
    ):
        list(reader)


def test_a_process_of_several_without_a_shard_is_warned(feed, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.warns(UserWarning, match="WORLD_SIZE=2, and no cur_shard and shard_count"):
        feed.petastorm_reader(["label"])


def test_a_feed_without_images_gives_none(uneven):
    with pytest.raises(InvalidArgumentError, match="gives no images: it was made with image_column=None"):
        DeltaFeed(uneven, image_column=None, label_column=None).as_numpy(4)


# --- what a transform declares ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def numbers(tmp_path_factory) -> DeltaFeed:
    location = tmp_path_factory.mktemp("numbers")
    columns = {"n": pa.array(range(4), pa.int64()), "x": [0.5, 1.5, 2.5, 3.5], "t": ["a", "b", "c", "d"]}
    write_deltalake(str(location), pa.table(columns))
    return DeltaFeed(location, image_column=None, label_column=None, shuffle=False)


def transformed(feed: DeltaFeed, function, *edited, columns=("n", "x", "t")):
    spec = TransformSpec(function, edit_fields=[(*field, False) for field in edited])
    with feed.petastorm_reader(list(columns), transform_spec=spec) as reader:
        return next(reader)


NAN = float("nan")


@pytest.mark.parametrize(
    ("name", "values", "declared", "said"),
    [
        ("n", [1, 2, 3, 3.5], None, "'n' is declared as int64.*convert it in the function"),
        ("n", [1.0, 2.0, 3.0, NAN], None, "'n' is declared as int64.*float64"),
        ("n", ["1", "2", "3", "4"], None, "'n' is declared as int64.*'1'"),
        ("n", [1, 2, None, 4], "object", "'n' is declared as int64.*None"),
        ("n", [0, 1, 2, 302], (np.uint8, ()), "'n' is declared as uint8.*302"),
        ("n", [0, 1, 2, -1], (np.uint16, ()), "'n' is declared as uint16.*-1"),
        ("n", [0, 1, 2, 2**70], "object", "'n' is declared as int64.*1180591620717411303424"),
        ("n", [0, 1, 1, 0], (np.bool_, ()), "'n' is declared as bool"),
        ("x", ["a", "b", "c", "d"], None, "'x' is declared as float64.*'a'"),
        ("t", [1, 2, 3, 4], None, "'t' is declared as str.*1"),
        ("t", ["a", None, "c", "d"], None, "'t' is declared as str.*(None|nan)"),
        ("n", [[1.5, 2.0]] * 4, (np.int32, (2,)), "'n' is declared as int32.*1.5"),
        ("n", [[1, 2], [1, [2]], [3, 4], [5, 6]], (np.int32, (2,)), "'n': a row has arrays of several lengths"),
        ("n", ["2024-01-01"] * 4, (np.datetime64, ()), "'n' is declared as datetime64.*'2024-01-01'"),
    ],
)
def test_a_transform_that_gives_another_type_than_it_declares_is_refused(numbers, name, values, declared, said):
    kind = "object" if declared == "object" else None
    edited = [(name, *declared)] if isinstance(declared, tuple) else []
    with pytest.raises(InvalidArgumentError, match=said):
        transformed(numbers, lambda frame: frame.assign(**{name: pd.Series(values, dtype=kind)}), *edited)


@pytest.mark.parametrize(
    ("name", "values", "declared", "given"),
    [
        ("n", pd.Series([0, 1, 2, 255]), (np.uint8, ()), [0, 1, 2, 255]),
        ("n", pd.Series([True, False, True, True]), None, [1, 0, 1, 1]),
        ("n", pd.Series([4, 3, 2, 1], dtype="Int64"), None, [4, 3, 2, 1]),
        ("n", pd.Series([4, 3, 2, 1], dtype=object), (np.int8, ()), [4, 3, 2, 1]),
        ("x", pd.Series([1, 2, 3, 4]), (np.float32, ()), [1.0, 2.0, 3.0, 4.0]),
        ("x", pd.Series([0.5, NAN, 1, 2]), (np.float16, ()), [0.5, NAN, 1.0, 2.0]),
        ("t", pd.Series(["a", "b", "c", "d"], dtype="string"), None, ["a", "b", "c", "d"]),
        ("n", pd.Series([[1, 2]] * 4), (np.float32, (2,)), [[1.0, 2.0]] * 4),
    ],
)
def test_a_transform_may_give_another_width_of_a_declared_type(numbers, name, values, declared, given):
    item = transformed(
        numbers, lambda frame: frame.assign(**{name: values}), *([(name, *declared)] if declared else [])
    )
    found = getattr(item, name)
    np.testing.assert_array_equal(found, given)
    assert declared is None or found.dtype == declared[0]


# --- arrays of several lengths, or with nulls ------------------------------------------------------------------------


ARRAYS = {
    "lengths": pa.array([[float(n)] * (n % 3 + 1) for n in range(6)], pa.list_(pa.float32())),
    "nulls": pa.array([[1, 2], None, [3, 4], [5, 6], None, [7, 8]], pa.list_(pa.int64())),
    "holes": pa.array([["a"], [None], ["b", "c"], [], ["d"], ["e"]], pa.list_(pa.string())),
    "even": pa.array([[n, n] for n in range(6)], pa.list_(pa.int32())),
    "n": pa.array(range(6), pa.int64()),
}


@pytest.fixture(scope="module")
def arrays(tmp_path_factory) -> DeltaFeed:
    location = tmp_path_factory.mktemp("arrays")
    write_deltalake(str(location), pa.table(ARRAYS))
    return DeltaFeed(location, image_column=None, label_column=None, shuffle=False)


def padded(column: str, kind: type, length: int, empty) -> TransformSpec:
    """Makes the arrays of a column equally long, a null an array of `empty` alone."""

    def pad(frame):
        found = np.full((len(frame), length), empty, dtype=object if kind is np.str_ else kind)
        for row, value in enumerate(frame[column]):
            assert value is None or isinstance(value, np.ndarray)
            for place, item in enumerate([] if value is None else value):
                found[row, place] = empty if item is None else item
        return frame.assign(**{column: list(found)})

    return TransformSpec(pad, edit_fields=[(column, kind, (length,), False)])


@pytest.mark.parametrize("batch_size", [1, 4, 6])
@pytest.mark.parametrize(
    ("spec", "column", "given"),
    [
        (padded("lengths", np.float32, 3, -1), "lengths", [[0, -1, -1], [1, 1, -1], [2, 2, 2]]),
        (padded("nulls", np.int64, 2, 0), "nulls", [[1, 2], [0, 0], [3, 4]]),
        (padded("holes", np.str_, 2, ""), "holes", [["a", ""], ["", ""], ["b", "c"]]),
    ],
)
def test_arrays_of_several_lengths_and_with_nulls_reach_the_transform(arrays, batch_size, spec, column, given):
    with arrays.petastorm_reader([column], transform_spec=spec, batch_size=batch_size) as reader:
        found = [row for item in reader for row in getattr(item, column).tolist()]
    assert (found[:3], len(found)) == (given, 6)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("lengths", "row 1 of .* holds an array of length 2, others have 1"),
        ("nulls", "row 1 of .* holds null.*fill={'nulls'"),
        ("holes", "row 1 of .* holds an array with a null"),
    ],
)
def test_without_a_transform_they_are_refused_with_their_row(arrays, column, said):
    with arrays.petastorm_reader([column]) as reader, pytest.raises(InvalidArgumentError, match=said):
        next(reader)
    unchanged = TransformSpec(lambda frame: frame)
    with arrays.petastorm_reader([column], transform_spec=unchanged) as reader:
        with pytest.raises(InvalidArgumentError, match=f"column '{column}'"):
            next(reader)


def test_without_columns_they_are_left_out_unless_a_transform_changes_them(arrays):
    with pytest.warns(UserWarning, match="left out: lengths, nulls, holes"), arrays.petastorm_reader() as reader:
        assert next(reader)._fields == ("even", "n")
    with pytest.warns(UserWarning, match="left out: nulls, holes"):
        reader = arrays.petastorm_reader(transform_spec=padded("lengths", np.float32, 3, 0))
    with reader:
        assert sorted(next(reader)._fields) == ["even", "lengths", "n"]
    kept = DeltaFeed(arrays.plan.location, image_column=None, label_column=None, filters={"n": [0, 3]})
    with pytest.warns(UserWarning, match="left out: holes"), kept.petastorm_reader() as reader:
        assert next(reader).nulls.shape == (2, 2)


@pytest.mark.parametrize("fill", [[0, 0], np.array([0, 0])])
def test_an_array_stands_for_a_null_array(arrays, fill):
    with arrays.petastorm_reader(["nulls"], fill={"nulls": fill}) as reader:
        assert next(reader).nulls.tolist() == [[1, 2], [0, 0], [3, 4], [5, 6], [0, 0], [7, 8]]
    columns, _ = next(arrays.as_column_numpy(6, columns=["nulls"], fill={"nulls": fill}))
    assert columns["nulls"].tolist() == [[1, 2], [0, 0], [3, 4], [5, 6], [0, 0], [7, 8]]


@pytest.mark.parametrize("fill", [{"nulls": 0}, {"nulls": ["a"]}, {"holes": [1]}, {"nulls": None}, {"n": None}])
def test_what_cannot_stand_for_an_array_is_refused(arrays, fill):
    with pytest.raises(InvalidArgumentError, match="does not fit the column's type"):
        arrays.petastorm_reader(list(fill), fill=fill)
