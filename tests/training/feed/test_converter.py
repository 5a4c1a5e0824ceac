"""`make_delta_converter` and Petastorm's TensorFlow adapter on the feed: shards, epochs, order, and what is refused."""

from __future__ import annotations

import pickle
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from coloured_tables import coloured_table
from deltalake import write_deltalake
from feed_tables import HEIGHT, WIDTH, flat, write_layout
from leftovers import feed_threads

import lakelens
from lakelens import DeltaFeed, ImageTable, make_delta_converter
from lakelens.errors import InvalidArgumentError, NotADeltaTableError, NotSupportedError

pytestmark = pytest.mark.tensorflow

ROWS = 91


@pytest.fixture(scope="module")
def converter(uneven):
    return make_delta_converter(uneven, split="train", columns=["image", "label"])


def labels(converter, **options) -> list[list[int]]:
    with converter.make_tf_dataset(**options) as dataset:
        return [batch.label.numpy().tolist() for batch in dataset]


@pytest.mark.unit
def test_a_converter_has_the_names_of_petastorms_and_removes_nothing(uneven, converter):
    assert len(converter) == converter.dataset_size == ROWS
    converter.delete()
    assert len(make_delta_converter(ImageTable(None, uneven), 3)) == ROWS
    assert len(make_delta_converter(uneven, 0)) == 50
    assert len(make_delta_converter(uneven, filters={"label": [1, 2, 90]})) == 3
    assert len(make_delta_converter(DeltaFeed(uneven, 1))) == 57
    with pytest.raises(InvalidArgumentError, match=r"version: DeltaFeed.*was made with its own"):
        make_delta_converter(DeltaFeed(uneven, 1), 2)
    with pytest.raises(NotADeltaTableError):
        make_delta_converter(uneven / "nothing")


def test_epochs_differ_in_order_and_the_same_seed_gives_the_same_order(uneven, converter):
    two = flat(labels(converter, num_epochs=2))
    assert sorted(two[:ROWS]) == sorted(two[ROWS:]) == list(range(ROWS))
    assert two[:ROWS] != two[ROWS:]
    other = pickle.loads(pickle.dumps(make_delta_converter(str(uneven), 3, seed=5)))
    assert flat(labels(other, num_epochs=2, schema_fields=["label"], seed=0, workers_count=1)) == two
    assert flat(labels(other, num_epochs=2, schema_fields=["label"])) != two
    assert flat(labels(other, num_epochs=1, schema_fields=["label"], shuffle_row_groups=False)) == flat(
        labels(converter, num_epochs=1, shuffle_row_groups=False, seed=9)
    )


def test_a_look_at_the_first_batch_takes_no_row_from_the_next_pass(converter):
    expected = [flat(labels(converter, num_epochs=2))[first : first + ROWS] for first in (0, ROWS)]
    with converter.make_tf_dataset(num_epochs=1) as dataset:
        for batch in dataset.take(1):
            assert batch.label.numpy().tolist() == expected[0][:32]
        for epoch in expected:
            assert flat([batch.label.numpy().tolist() for batch in dataset]) == epoch
    with converter.make_tf_dataset(prefetch=8, num_epochs=None) as dataset:  # more than an epoch ahead
        for _ in range(2):
            assert flat([batch.label.numpy().tolist() for batch in dataset.take(3)]) == expected.pop(0)


def test_passes_over_a_transform_that_removes_rows_are_one_epoch_each(converter):
    from petastorm.transform import TransformSpec

    options = {"batch_size": 10, "num_epochs": 1, "schema_fields": ["label"]}
    expected = flat(labels(converter, **{**options, "num_epochs": 4}))
    even = [[label for label in expected[first : first + ROWS] if label % 2 == 0] for first in range(0, 4 * ROWS, ROWS)]
    spec = TransformSpec(lambda frame: frame[frame.label % 2 == 0])
    with converter.make_tf_dataset(transform_spec=spec, **options) as dataset:
        assert [flat([batch.label.numpy().tolist() for batch in dataset]) for _ in range(4)] == even
    with converter.make_tf_dataset(transform_spec=spec, drop_last=True, **options) as dataset:
        assert len(dataset) == 9
        assert [flat([batch.label.numpy().tolist() for batch in dataset]) for _ in range(3)] == [
            [label for label in expected[first : first + 90] if label % 2 == 0] for first in range(0, 3 * ROWS, ROWS)
        ]


def test_a_pass_left_in_the_middle_of_a_transform_that_adds_rows_is_begun_again(converter):
    import pandas as pd
    from petastorm.transform import TransformSpec

    spec = TransformSpec(lambda frame: pd.concat([frame, frame]))
    options = {"batch_size": 10, "num_epochs": 1, "schema_fields": ["label"], "transform_spec": spec}
    with converter.make_tf_dataset(**options) as dataset:
        whole = flat([batch.label.numpy().tolist() for batch in dataset])
    with converter.make_tf_dataset(**options) as dataset:
        assert len(list(dataset.take(6))) == 6  # more rows than the table has
        assert flat([batch.label.numpy().tolist() for batch in dataset]) == whole


def test_dropping_the_last_batch_gives_all_shards_equal_steps(converter):
    steps = converter.steps_per_epoch(10, 3)
    assert steps == 3
    for shard in range(3):
        batches = labels(converter, batch_size=10, num_epochs=1, cur_shard=shard, shard_count=3, drop_last=True)
        assert [len(batch) for batch in batches] == [10] * steps
    assert converter.steps_per_epoch(10, 3, drop_last=False) == 4


def test_every_type_becomes_petastorms_tensor(tmp_path):
    time = datetime(2026, 1, 2, 3, 4, 5, 600, tzinfo=timezone.utc)
    columns = {
        "small": (pa.array([1], pa.int8()), "int8", 1),
        "number": (pa.array([1 << 40], pa.int64()), "int64", 1 << 40),
        "share": (pa.array([0.5], pa.float64()), "float64", 0.5),
        "flag": (pa.array([True]), "bool", True),
        "letter": (pa.array(["ä"]), "string", "ä".encode()),
        "data": (pa.array([b"\x00\xff"], pa.binary()), "string", b"\x00\xff"),
        "amount": (pa.array([Decimal("1.50")], pa.decimal128(9, 2)), "string", b"1.50"),
        "day": (pa.array([1], pa.date32()), "int64", 86_400 * 10**9),
        "time": (pa.array([time], pa.timestamp("us", "UTC")), "int64", int(time.timestamp()) * 10**9 + 600_000),
        "vector": (pa.array([[1.0, 2.0]], pa.list_(pa.float32())), "float32", [1.0, 2.0]),
    }
    write_deltalake(str(tmp_path / "t"), pa.table({name: values for name, (values, _, _) in columns.items()}))
    with make_delta_converter(tmp_path / "t").make_tf_dataset(num_epochs=1) as dataset:
        (item,) = list(dataset)
    found = {name: (value.dtype.name, value.numpy().tolist()) for name, value in item._asdict().items()}
    assert found == {name: (kind, [value]) for name, (_, kind, value) in columns.items()}


def test_types_that_a_transform_gives_become_tensors_as_in_petastorms_own_dataset(converter):
    from petastorm.tf_utils import make_petastorm_dataset
    from petastorm.transform import TransformSpec

    kinds = [("short", np.uint16, ()), ("int", np.uint32, ()), ("pair", np.uint16, (2,)), ("words", np.str_, (2,))]
    spec = TransformSpec(
        lambda frame: frame.assign(
            short=frame.label.astype(np.uint16),
            int=frame.label.astype(np.uint32),
            pair=[np.full(2, label, np.uint16) for label in frame.label],
            words=[[str(label)] * 2 for label in frame.label],
            day=[date(2026, 1, 1)] * len(frame),
            time=np.datetime64("2026-01-01T00:00:00.5"),
        ),
        [(*kind, False) for kind in (*kinds, ("day", np.datetime64, ()), ("time", np.datetime64, ()))],
    )
    options = {"batch_size": 20, "transform_spec": spec}
    with converter.make_tf_dataset(num_epochs=1, schema_fields=["label"], **options) as dataset:
        found, described = list(dataset.as_numpy_iterator()), dataset.element_spec
    with converter.feed.petastorm_reader(["label"], **options) as reader:
        dataset = make_petastorm_dataset(reader)
        assert described == dataset.element_spec
        for ours, petastorms in zip(found, dataset.as_numpy_iterator(), strict=True):
            assert [part.tolist() for part in ours] == [part.tolist() for part in petastorms]


def test_petastorms_dataset_over_the_reader_has_shapes_and_is_iterated_again_in_another_order(converter):
    from petastorm.tf_utils import make_petastorm_dataset

    spec = lakelens.decode_images(HEIGHT, WIDTH)
    with converter.feed.petastorm_reader(["image", "label"], transform_spec=spec, batch_size=20) as reader:
        dataset = make_petastorm_dataset(reader)
        assert dataset.element_spec.image.shape.as_list() == [None, HEIGHT, WIDTH, 3]
        assert dataset.element_spec.label.dtype.name == "int32"
        first = [label for batch in dataset for label in batch.label.numpy().tolist()]
        with pytest.warns(UserWarning, match="multiple iterations"):
            second = [label for batch in dataset for label in batch.label.numpy().tolist()]
    assert sorted(first) == sorted(second) == list(range(ROWS))
    assert first != second


def test_an_error_of_the_feed_stops_a_dataset_and_names_the_file(tmp_path):
    converter = make_delta_converter(write_layout(tmp_path / "t", [20]), columns=["label"])
    file = Path(converter.feed.plan.file_location(0))
    file.unlink()
    with converter.make_tf_dataset(num_epochs=1) as dataset, pytest.raises(Exception, match=file.name):
        list(dataset)


def test_leaving_a_dataset_in_the_middle_ends_its_threads(converter):
    with converter.make_tf_dataset(batch_size=2) as dataset:
        next(iter(dataset))
    assert feed_threads() == []


@pytest.mark.unit
@pytest.mark.parametrize(
    ("option", "error", "words"),
    [
        ({"predicate": object()}, NotSupportedError, "give filters={column: values} to make_delta_converter"),
        ({"cache_type": "local-disk"}, NotSupportedError, "cache_type='local-disk': use the dataset's own cache"),
        ({"storage_options": {}}, NotSupportedError, "give storage_options to make_delta_converter"),
        ({"worker_count": 3}, InvalidArgumentError, r"no option 'worker_count'; did you mean 'workers_count'\?"),
        ({"num_epoch": 3}, InvalidArgumentError, r"did you mean 'num_epochs'\?"),
        ({"read_timeout": 3}, InvalidArgumentError, r"did you mean 'read_timeout_s'\?"),
        ({"schema_fields": ["imag"]}, InvalidArgumentError, r"no column 'imag' \(did you mean 'image'\?\)"),
        ({"shard_count": 2}, InvalidArgumentError, "give both or neither"),
    ],
)
def test_arguments_that_have_another_place_here_are_refused(converter, option, error, words):
    for make in (converter.make_tf_dataset, converter.make_torch_dataloader):
        with pytest.raises(error, match=words):
            make(**{"num_epochs": 1, **option})


@pytest.mark.unit
def test_arguments_that_only_say_how_petastorm_reads_change_nothing(converter):
    converter.make_tf_dataset(reader_pool_type="process", results_queue_size=3, cache_type="null", shuffle_rows=True)
    converter.make_tf_dataset(shuffling_queue_capacity=100)
    stored_order = make_delta_converter(converter.feed.reordered(shuffle=False))
    for make in (partial(converter.make_tf_dataset, shuffle_row_groups=False), stored_order.make_tf_dataset):
        with pytest.raises(InvalidArgumentError, match="the stored order, which no queue shuffles"):
            make(shuffling_queue_capacity=100)


@pytest.mark.unit
def test_columns_that_pytorch_has_no_tensors_of_are_refused(converter):
    with pytest.raises(InvalidArgumentError, match=r"no tensors of text, bytes.*: image; .*lakelens.decode_images"):
        converter.make_torch_dataloader()


@pytest.mark.horovod
def test_code_written_for_petastorms_converter_runs_on_horovod_with_one_line_changed(two_ranks, tmp_path):
    # Before: converter = make_spark_converter(spark.read.format("delta").load(table).select("image", "label"))
    converter = make_delta_converter(coloured_table(tmp_path / "squares"), split="train", columns=["image", "label"])

    def train(batch_size: int, epochs: int) -> tuple[list[int], float]:
        import keras
        import tensorflow as tf

        import lakelens.hvd as hvd

        hvd.init()

        def decode(image: tf.Tensor) -> tf.Tensor:
            pixels = tf.io.decode_jpeg(image, channels=3)
            return tf.ensure_shape(tf.cast(pixels, tf.float32) / 255.0, (16, 16, 3))

        with converter.make_tf_dataset(
            batch_size=batch_size, num_epochs=1, cur_shard=hvd.rank(), shard_count=hvd.size()
        ) as dataset:
            mine = [label for batch in dataset for label in batch.label.numpy().tolist()]
        with converter.make_tf_dataset(batch_size, cur_shard=hvd.rank(), shard_count=hvd.size()) as dataset:
            rows = dataset.unbatch().map(lambda row: (decode(row.image), row.label)).batch(batch_size)
            model = keras.Sequential([keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(3)])
            optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.05 * hvd.size()))
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
            callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
            steps = len(converter) // (batch_size * hvd.size())
            history = model.fit(rows, epochs=epochs, steps_per_epoch=steps, callbacks=callbacks, verbose=0)
        return len(mine), history.history["accuracy"][-1]

    for count, accuracy in two_ranks.run(train, 9, 8):
        assert count == 45
        assert accuracy > 0.9
