"""Rules of registering and promoting models, on a real two-executor Spark and with a real MLflow store."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3

import pandas as pd
import pytest
from colours import colour_model, row, write_table
from deltalake import DeltaTable
from model_store import ROWS, Store, wrong_for_red

from lakelens import Job
from lakelens.errors import CheckpointError, InvalidArgumentError, ModelNotFoundError, TrackingError, UsageError
from lakelens.etl.model.classes import LABELS_PROPERTY
from lakelens.inference import promotion
from lakelens.inference.evaluation.classification import ClassificationEvaluator
from lakelens.inference.evaluation.evaluate import evaluate
from lakelens.inference.evaluation.metrics import measure
from lakelens.inference.evaluation.result import EvaluationResult
from lakelens.inference.model.registry import (
    list_versions,
    parse_version,
    register,
    set_alias,
    version_behind,
    version_of,
)
from lakelens.inference.promotion import Promotion, _decided, promote, staleness
from lakelens.inference.scoring.score import score
from lakelens.jobs.cli import main
from lakelens.log.snapshot import open_snapshot
from lakelens.table import Table
from lakelens.tracking.runs import local_store_path, open_client
from lakelens.training.checkpoints.references import resolve_model


@pytest.fixture
def unity_catalog(monkeypatch):
    """Lets the store's searches answer as Unity Catalog's do: a page at a time, without tags and aliases."""
    from mlflow.entities.model_registry import ModelVersionSearch, RegisteredModelSearch
    from mlflow.store.entities import PagedList
    from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore

    def answering(method, kind, *fields):
        def search(self, filter_string=None, max_results=None, order_by=None, page_token=None):
            page = method(self, filter_string, 2, order_by, page_token)
            return PagedList([kind(*(getattr(one, field) for field in fields)) for one in page], page.token)

        monkeypatch.setattr(SqlAlchemyStore, method.__name__, search)

    answering(SqlAlchemyStore.search_model_versions, ModelVersionSearch, "name", "version", "creation_timestamp")
    answering(SqlAlchemyStore.search_registered_models, RegisteredModelSearch, "name")


@pytest.mark.tensorflow
def test_a_registry_whose_searches_have_pages_and_no_tags_works_as_any_other(store, unity_catalog):
    name = "lake.nature.owls"
    runs = [store.run(colour_model(6.0 + number)) for number in range(3)]
    options = {"tracking_uri": store.uri}
    assert [register(f"runs:/{run}", name, **options).version for run in (*runs, runs[0])] == [1, 2, 3, 1]
    assert promote(f"runs:/{runs[1]}", name, **options).promoted
    assert not promote(f"runs:/{runs[1]}", name, **options).promoted
    assert version_behind(name, "champion", store.uri).version == 2
    assert version_behind(name, "challenger", store.uri) is None
    assert list(version_of(name, 2, store.uri).promotions) == ["champion"]
    found = {form: resolve_model(f"models:/{name}{form}", store.uri).run_id for form in ("/latest", "@champion", "/1")}
    assert found == {"/latest": runs[2], "@champion": runs[1], "/1": runs[0]}
    assert not staleness(name, store.table, **options).stale


@pytest.mark.tensorflow
def test_no_version_has_an_alias_where_there_is_no_model_or_no_store_yet(store, tmp_path, capsys):
    assert version_behind("cranes", "champion", store.uri) is None
    absent = f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert main(["models", "exists", "cranes", "champion", "--tracking-uri", absent]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {
        "model": "models:/cranes@champion",
        "exists": False,
        "version": None,
    }
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
def test_an_alias_moves_only_to_a_better_model_and_both_scores_are_kept(spark, store):
    good, bad = store.run(colour_model()), store.run(wrong_for_red())
    options = {"spark": spark, "if_better": "accuracy", "on": f"{store.table}@0", "tracking_uri": store.uri}
    first = promote(f"runs:/{bad}", "birds", **options)
    assert (first.promoted, first.previous, first.version) == (True, None, 1)
    assert first.artifacts == f"runs:/{bad}/evaluation/images-v0-test"
    better = promote(f"runs:/{good}", "birds", **options)
    assert (better.promoted, better.previous, better.score) == (True, 1, 1.0)
    assert better.previous_score < 1.0
    assert resolve_model("models:/birds@champion", store.uri).run_id == good
    again = promote(f"runs:/{good}", "birds", **options)
    assert (again.promoted, again.reason) == (False, "the alias points to this model already")
    versions = {number: version_of("birds", number, store.uri) for number in (1, 2)}
    assert versions[2].aliases == ("champion",)
    note = json.loads(versions[2].promotions["champion"])
    assert (note["promoted"], note["previous"], note["score"]) == (True, 1, 1.0)
    assert (note["previous_score"], note["table"]) == (better.previous_score, f"{store.table}@0")
    place = f"evaluation/images-v0-test-vs-birds_1-{versions[1].digest[:8]}"
    assert better.artifacts == f"runs:/{good}/{place}"
    artifacts = {file.path for file in store.client.list_artifacts(good, place)}
    assert f"{place}/evaluation.html" in artifacts
    metrics = store.client.get_run(good).data.metrics
    assert metrics["evaluation/images-v0-test/accuracy"] == 1.0
    assert (metrics[f"{place}/fixed"], metrics[f"{place}/broken"], metrics[f"{place}/p_value"]) == (3, 0, 0.25)


def number_of(store, run):
    return next(one.version for one in list_versions("jays", store.uri) if one.run_id == run)


@pytest.mark.spark
def test_a_scoring_and_a_promotion_of_a_job_that_has_finished_give_their_results_again(
    spark, store, tmp_path, monkeypatch
):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    record_job = promotion.record_job

    def record_only_that_the_alias_is_about_to_move(job, arguments, record, uri):
        if record.is_done:
            raise KeyboardInterrupt
        record_job(job, arguments, record, uri)

    run, other = store.run(colour_model(5.5)), store.run(colour_model(6.5))
    keyed = {"tracking_uri": store.uri, "job": "dag/monday/promote"}
    first = promote(f"runs:/{run}", "jays", **keyed)
    assert first.promoted
    assert promote(f"runs:/{other}", "jays", tracking_uri=store.uri).promoted
    assert promote(f"runs:/{run}", "jays", **keyed) == first
    assert version_behind("jays", "champion", store.uri).run_id == other  # not moved back
    with pytest.raises(InvalidArgumentError, match='alias was "champion" and is "best"'):
        promote(f"runs:/{run}", "jays", alias="best", **keyed)
    over = Job("dag/monday/promote", takeover=True, from_start=True)
    assert promote(f"runs:/{run}", "jays", **{**keyed, "job": over}).version == first.version
    assert version_behind("jays", "champion", store.uri).run_id == run

    # Killed before the move of the alias, and after it.
    for killed, model in (("move_alias", other), ("_record", run), ("_record", other)):
        again = {**keyed, "job": f"dag/{killed}/{model}"}
        with monkeypatch.context() as patch:
            patch.setattr(promotion, killed, interrupt)
            with pytest.raises(KeyboardInterrupt):
                promote(f"runs:/{model}", "jays", **again)
        before = 3 - number_of(store, model)
        repeated = promote(f"runs:/{model}", "jays", **again)
        assert (repeated.promoted, repeated.version, repeated.previous) == (True, 3 - before, before)
        assert promote(f"runs:/{model}", "jays", **again) == repeated
    assert len(list_versions("jays", store.uri)) == 2

    # Another promotion has moved the alias on since, before the retry and after it.
    again = {**keyed, "job": "dag/moved on"}
    with monkeypatch.context() as patch:
        patch.setattr(promotion, "record_job", record_only_that_the_alias_is_about_to_move)
        with pytest.raises(KeyboardInterrupt):
            promote(f"runs:/{run}", "jays", **again)
    assert promote(f"runs:/{other}", "jays", tracking_uri=store.uri).promoted
    for _ in range(2):
        repeated = promote(f"runs:/{run}", "jays", **again)
        assert (repeated.promoted, repeated.version) == (True, number_of(store, run))
        assert version_behind("jays", "champion", store.uri).run_id == other
    # The record stays where the model's run was deleted, and a damaged one has a way out.
    open_client(store.uri).delete_run(run)
    assert promote(f"runs:/{run}", "jays", **again) == repeated
    open_client(store.uri).restore_run(run)
    open_client(store.uri).set_tag(run, f"lakelens.job.{Job('dag/moved on').digest}", "{")
    with pytest.raises(TrackingError, match=r"the record of job 'dag/moved on' in run .* is damaged .*--from-start"):
        promote(f"runs:/{run}", "jays", **again)
    with pytest.raises(InvalidArgumentError, match="there is no MLflow store at"):
        promote(f"runs:/{run}", "jays", tracking_uri=f"sqlite:///{tmp_path}/none/mlflow.db", job="unknown store")
    assert not (tmp_path / "none").exists()

    model, predictions = f"runs:/{run}", tmp_path / "predictions"
    scored = {"split": "test", "tracking_uri": store.uri, "job": "dag/monday/score"}
    done = score(spark, model, f"{store.table}@0", predictions, **scored)
    assert done.scored > 0
    assert score(spark, model, f"{store.table}@0", predictions, **scored) == done
    with pytest.raises(InvalidArgumentError, match='split was "test" and is null'):
        score(spark, model, f"{store.table}@0", predictions, **{**scored, "split": None})
    with pytest.raises(InvalidArgumentError, match="not for a watch"):
        score(spark, model, store.table, predictions, watch_s=1, **scored)


@pytest.mark.spark
def test_a_model_that_fails_on_more_than_the_stated_share_of_rows_is_never_promoted(spark, store):
    broken = store.run(colour_model(float("inf")))
    options = {"spark": spark, "if_better": "accuracy", "on": f"{store.table}@0", "tracking_uri": store.uri}
    found = promote(f"runs:/{broken}", "puffins", **options)
    assert (found.promoted, found.previous, found.errors) == (False, None, 1.0)
    assert f"{ROWS} of {ROWS} rows have an error instead of a prediction, more than the share max_errors=0.01" in (
        found.reason
    )
    assert version_behind("puffins", "champion", store.uri) is None


def measured(**rows):
    """What an evaluation measures of rows that are all right, and of rows that all have errors."""
    counts = [(0, 0, 0, 9, rows.get("right", 0), 9.0), (0, None, None, None, rows.get("errors", 0), 0.0)]
    names = ["label", "prediction", "true_rank", "bin", "rows", "confidence"]
    return measure(pd.DataFrame([one for one in counts if one[4]], columns=names), {0: "red"})


@pytest.mark.unit
@pytest.mark.parametrize(
    ("found", "other", "metric", "max_errors", "expected", "reason"),
    [
        ({"errors": 9}, None, "accuracy", 0.99, (False, 0), "9 of 9 rows have an error .* the share max_errors=0.99"),
        ({"errors": 9}, None, "accuracy", 1, (True, 0), "no version had the alias"),
        ({"right": 9}, {"errors": 9}, "ece", 0, (True, 0), "version 1 scored no row without an error, which counts as"),
        ({"right": 9}, {"right": 9}, "accuracy", 0, (False, 1), "1.0000 against 1.0000: not better by more than 0"),
        ({"right": 9}, {"right": 8, "errors": 1}, "accuracy", 0, (True, 1), "1.0000 against 0.8889: better by"),
    ],
)
def test_a_model_with_few_errors_is_promoted_over_a_worse_one(found, other, metric, max_errors, expected, reason):
    other = None if other is None else measured(**other)
    result = EvaluationResult("runs:/1", "d" * 64, "1", None, "/images", 0, "test", measured(**found), other=other)
    asked = Promotion("puffins", "champion", 2, True, "no version had the alias", previous=1)
    decided = _decided(asked, result, ClassificationEvaluator, metric, 0.0, max_errors)
    assert (decided.promoted, decided.score) == pytest.approx(expected)
    assert re.search(reason, decided.reason)


@pytest.mark.spark
def test_a_model_of_before_a_rename_is_compared(spark, store, tmp_path):
    table = tmp_path / "images"
    for numbers, split in ((range(ROWS), "test"), (range(ROWS, ROWS + 3), "train")):
        write_table(table, [row(number, split=split) for number in numbers])
    DeltaTable(table).update(updates={"label_name": "'crimson'"}, predicate="label_name = 'red'")
    labels = {"0": "crimson", "1": "green", "2": "blue"}
    old = store.run(wrong_for_red(), version=1, table=table)
    new = store.run(colour_model(), version=2, table=table, labels=labels)
    result = evaluate(spark, f"runs:/{new}", f"{table}@2", compare=f"runs:/{old}", tracking_uri=store.uri, record=False)
    assert [one.name for one in result.other.classes] == ["crimson (red)", "green", "blue"]
    changes = result.comparison.classes
    assert [(one.name, one.fixed, one.trained_before, one.trained_after) for one in changes] == [
        ("crimson (red)", 3, 1, 1),
        ("green", 0, 1, 1),
        ("blue", 0, 1, 1),
    ]


@pytest.mark.tensorflow
def test_a_promotion_that_cannot_be_decided_opens_no_session_and_registers_nothing(store):
    run = store.run(colour_model(6.0))
    opened = []
    asked = {"if_better": "accuracy", "on": f"{store.table}@0", "spark": lambda: opened.append("a session")}
    for wrong in (
        {"if_better": "beauty"},
        {"on": f"{store.table}@9"},
        {"split": "validation"},
        {"key": "etag"},
        {"label_column": "kind"},
        {"predictions": store.folder},
        {"predictions": store.table},
        {"spark": None},
    ):
        with pytest.raises(UsageError):
            promote(f"runs:/{run}", "owlets", **{**asked, **wrong}, tracking_uri=store.uri)
    with pytest.raises(ModelNotFoundError):
        version_of("owlets", 1, store.uri)
    assert opened == []


@pytest.mark.unit
@pytest.mark.parametrize(
    ("action", "way"),
    [
        (["list"], "search_model_versions"),
        (["register", "runs:/1", "gulls"], "mlflow.register_model('runs:/RUN/model', 'NAME')"),
        (["compare", "runs:/1", "runs:/2"], "mlflow ui"),
    ],
)
def test_what_mlflow_does_is_answered_with_its_way(action, way, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["models", *action])
    assert way in json.loads(capsys.readouterr().out)["message"]


@pytest.mark.tensorflow
def test_an_alias_is_refused_to_a_model_that_is_not_that_of_its_run(store):
    run = store.run(colour_model(4.0))
    version = register(f"runs:/{run}", "wrens", store.uri)
    assert set_alias("wrens", version.version, "champion", store.uri).aliases == ("champion",)
    store.client.set_tag(run, "lakelens.checkpoint_digest", "0" * 64)
    with pytest.raises(CheckpointError, match=f"run {run}, which trained it, wrote 0000"):
        set_alias("wrens", version.version, "staging", store.uri)
    with pytest.raises(CheckpointError, match="not the same model"):
        register(f"runs:/{run}", "wrens", tracking_uri=store.uri)
    with pytest.raises(ModelNotFoundError):
        set_alias("wrens", 7, "champion", store.uri)
    assert parse_version("models:/wrens/1") == parse_version("wrens/1") == ("wrens", 1)
    with pytest.raises(InvalidArgumentError, match="is not a version of a registered model"):
        parse_version("wrens@champion")


@pytest.mark.tensorflow
def test_a_training_is_due_when_enough_is_new_or_a_class_has_moved(store, tmp_path):
    table = tmp_path / "images"
    write_table(table, [row(number) for number in range(30)])
    assert staleness("larks", f"{table}@0", tracking_uri=store.uri).stale
    register(f"runs:/{store.run(colour_model(5.0), table=table)}", "larks", tracking_uri=store.uri)
    same = staleness("larks", table, tracking_uri=store.uri)
    assert (same.stale, same.reason) == (False, "the newest model was trained on version 0")
    write_table(table, [row(number, "red") for number in range(30, 40)])
    few = staleness("larks", table, min_new_rows=20, max_drift=0.5, tracking_uri=store.uri)
    assert (few.stale, few.new_rows, few.drifted_class, few.trained_on, few.version) == (False, 10, "red", 0, 1)
    assert few.drift == pytest.approx(20 / 40 - 10 / 30)
    assert staleness("larks", table, min_new_rows=10, max_drift=0.5, tracking_uri=store.uri).stale
    assert staleness("larks", f"{table}@1", min_new_rows=20, max_drift=0.1, tracking_uri=store.uri).stale


@pytest.mark.tensorflow
def test_a_promotion_whose_record_fails_says_that_the_alias_has_moved(tmp_path):
    store = Store(tmp_path)
    first, second = (store.run(colour_model(sharpness)) for sharpness in (5.0, 6.0))
    promote(f"runs:/{first}", "dippers", tracking_uri=store.uri)
    with contextlib.closing(sqlite3.connect(local_store_path(store.uri))) as database:
        database.execute(
            "CREATE TRIGGER full BEFORE INSERT ON model_version_tags WHEN new.key LIKE 'lakelens.promotion.%' "
            "BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"
        )
    with pytest.raises(
        TrackingError, match=r"'dippers', whose alias 'champion' points to version 2 now: .*disk is full"
    ):
        promote(f"runs:/{second}", "dippers", tracking_uri=store.uri)
    behind = version_behind("dippers", "champion", store.uri)
    assert (behind.version, behind.promotions) == (2, {})


@pytest.mark.tensorflow
def test_a_model_of_a_table_that_was_deleted_and_written_again_is_stale(store, tmp_path):
    table = tmp_path / "images"
    write_table(table, [row(number) for number in range(ROWS)])
    trained = store.run(colour_model(), table=table)
    store.client.set_tag(trained, "lakelens.table_id", open_snapshot(Table.of(table)).table_id)
    register(f"runs:/{trained}", "terns", tracking_uri=store.uri)
    assert not staleness("terns", table, tracking_uri=store.uri).stale
    shutil.rmtree(table)
    write_table(table, [row(number) for number in range(30)])
    found = staleness("terns", table, tracking_uri=store.uri)
    assert (found.stale, found.reason) == (True, "no version of model 'terns' was trained on this table")


@pytest.mark.tensorflow
def test_a_class_that_was_renamed_is_no_drift(store, tmp_path):
    write_table(tmp_path, [row(number) for number in range(ROWS)])
    for name in ("red", "crimson"):
        table = DeltaTable(tmp_path)
        table.update(updates={"label_name": f"'{name}'"}, predicate="label = 0")
        labels = {name: 0, "green": 1, "blue": 2}
        table.alter.set_table_properties({LABELS_PROPERTY: json.dumps(labels)}, raise_if_not_exists=False)
    assert table.version() == 4
    register(f"runs:/{store.run(colour_model(), version=2, table=tmp_path)}", "grebes", tracking_uri=store.uri)
    found = staleness("grebes", tmp_path, min_new_rows=99, tracking_uri=store.uri)
    assert (found.stale, found.drift) == (False, 0.0)
