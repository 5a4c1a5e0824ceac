"""Promotions while others promote, delete versions or give odd names, on a real Spark and with a real MLflow store."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
from colours import colour_model, row, write_table
from deltalake import DeltaTable
from model_store import Store, wrong_for_red

from lakelens.errors import ModelNotFoundError, TrackingError
from lakelens.inference.model.registry import register, set_alias, version_behind, version_of
from lakelens.inference.promotion import Promotion, promote, staleness
from lakelens.jobs.cli import main
from lakelens.training.checkpoints.references import resolve_model


def record_of(store: Store, name: str, version: int) -> dict[str, Any]:
    """What the version of a model records about its promotion."""
    return json.loads(version_of(name, version, store.uri).promotions["champion"])


def promoted_while(store: Store, spark: Any, run: str, name: str, meanwhile: Callable[[], object]) -> Promotion:
    """Promotes a run by a comparison, while whose session opens something else happens."""

    def opened() -> Any:
        meanwhile()
        return spark

    options = {"if_better": "accuracy", "on": f"{store.table}@0", "tracking_uri": store.uri}
    return promote(f"runs:/{run}", name, spark=opened, **options)


@pytest.mark.spark
def test_a_model_is_compared_with_the_one_that_another_job_has_promoted_meanwhile(spark, store):
    old, best, other = store.run(wrong_for_red()), store.run(colour_model()), store.run(colour_model(9.0))
    promote(f"runs:/{old}", "gulls", tracking_uri=store.uri)
    again: list[Promotion] = []

    def another_job() -> None:
        if not again:
            again.append(promote(f"runs:/{best}", "gulls", tracking_uri=store.uri))

    found = promoted_while(store, spark, other, "gulls", another_job)
    assert (again[0].promoted, again[0].previous) == (True, 1)
    # Better than the old model, and no better than the one that replaced it.
    assert (found.promoted, found.previous, found.score, found.previous_score) == (False, 2, 1.0, 1.0)
    assert version_behind("gulls", "champion", store.uri).run_id == best
    assert (record_of(store, "gulls", 3)["promoted"], record_of(store, "gulls", 3)["previous"]) == (False, 2)


@pytest.mark.spark
def test_an_alias_that_moves_during_each_comparison_is_an_error_and_stays(spark, store, monkeypatch):
    monkeypatch.setattr("lakelens.inference.promotion._MOST_COMPARISONS", 2)
    runs = [store.run(wrong_for_red(7.0 + number)) for number in range(2)]
    for run in runs:
        register(f"runs:/{run}", "skuas", tracking_uri=store.uri)
    set_alias("skuas", 1, "champion", store.uri)
    best = store.run(colour_model())

    def move() -> None:
        now = version_behind("skuas", "champion", store.uri)
        set_alias("skuas", 3 - now.version, "champion", store.uri)

    with pytest.raises(TrackingError, match="'champion' of model 'skuas' has moved during each of 2 comparisons"):
        promoted_while(store, spark, best, "skuas", move)
    assert version_behind("skuas", "champion", store.uri).version == 1
    assert version_of("skuas", 3, store.uri).promotions == {}


@pytest.mark.tensorflow
def test_an_alias_whose_version_was_deleted_has_no_model(store):
    runs = [store.run(colour_model(11.0 + number)) for number in range(3)]
    for run in runs[:2]:
        promote(f"runs:/{run}", "rooks", tracking_uri=store.uri)
    store.client.delete_model_version("rooks", "2")  # this store deletes the alias too
    assert version_behind("rooks", "champion", store.uri) is None
    assert promote(f"runs:/{runs[0]}", "rooks", tracking_uri=store.uri).reason == "no version had the alias"
    # Other stores keep it.
    with sqlite3.connect(store.folder / "mlflow.db") as database:
        database.execute("UPDATE model_versions SET current_stage = 'Deleted_Internal' WHERE name = 'rooks'")
    assert int(store.client.get_registered_model("rooks").aliases["champion"]) == 1
    assert version_behind("rooks", "champion", store.uri) is None
    with pytest.raises(ModelNotFoundError, match="'models:/rooks@champion' is unknown"):
        resolve_model("models:/rooks@champion", store.uri)
    found = promote(f"runs:/{runs[2]}", "rooks", tracking_uri=store.uri)
    assert (found.promoted, found.previous, found.reason) == (True, 1, "version 1, which had it, was deleted")
    assert resolve_model("models:/rooks@champion", store.uri).run_id == runs[2]


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", ["kid's photos", 'the "best" photos'])
def test_a_model_with_quotes_in_its_name_is_promoted_and_found(name, store):
    run = store.run(colour_model(5.0))
    assert promote(f"runs:/{run}", name, tracking_uri=store.uri).promoted
    assert version_of(name, 1, store.uri).aliases == ("champion",)
    for reference in (f"models:/{name}@champion", f"models:/{name}/1", f"models:/{name}/latest"):
        assert resolve_model(reference, store.uri).run_id == run


@pytest.mark.tensorflow
def test_a_model_whose_version_of_the_table_is_gone_is_stale(store, tmp_path):
    write_table(tmp_path, [row(0)])
    register(f"runs:/{store.run(colour_model(), table=tmp_path)}", "dippers", tracking_uri=store.uri)
    table = DeltaTable(tmp_path)
    table.update(updates={"label_name": "label_name"})
    assert not staleness("dippers", tmp_path, tracking_uri=store.uri).stale
    assert table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    found = staleness("dippers", tmp_path, tracking_uri=store.uri)
    assert (found.stale, found.trained_on, found.new_rows) == (True, 0, 0)
    assert "cannot be compared" in found.reason
    assert "removed by VACUUM" in found.reason


@pytest.mark.unit
@pytest.mark.parametrize(("name", "alias"), [("owls", "v1"), ("owls", "latest"), ("owls", "a b"), ("a/b", "champion")])
def test_an_impossible_name_or_alias_ends_a_promotion_before_anything_is_looked_up(name, alias, tmp_path, capsys):
    place = f"sqlite:///{tmp_path}/mlflow.db"
    flags = ["--alias", alias, "--if-better", "accuracy", "--on", f"{tmp_path}/nothing@0", "--tracking-uri", place]
    assert main(["models", "promote", "runs:/unknown", name, *flags]) == 2
    assert "registered model" in (said := capsys.readouterr().err) or f"alias {alias!r}" in said
    assert list(tmp_path.iterdir()) == []
