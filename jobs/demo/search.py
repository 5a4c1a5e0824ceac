"""The demo of a search (`lakelens demo --search`): adaptive ASHA over the digits on two slots, and its report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakelens.jobs.demo.story import SPLITS, Demo

if TYPE_CHECKING:
    from lakelens.search import SearchResult

SIZE = 16  # half the side of the other demo, for a dozen trainings
EXPERIMENT = """\
name: search over the digits
entrypoint: lakelens.training.trials.small_cnn:SmallCnn
data: {{table: {table}, version: 0}}
hyperparameters:
  global_batch_size: 64
  learning_rate: {{type: log, base: 10, minval: -4.5, maxval: -0.5}}
  filters: {{type: categorical, vals: [4, 8, 16]}}
  dropout: {{type: double, minval: 0, maxval: 0.6}}
  rotation: {{type: double, minval: 0, maxval: 0.2}}
searcher:
  name: adaptive_asha
  metric: val_accuracy
  max_length: {{epochs: 9}}
  max_trials: 12
  divisor: 3
  max_rungs: 3
  mode: aggressive
resources: {{max_slots: 2, use_gpu: false}}
checkpoint_storage: {{path: {checkpoints}, save_experiment_best: 1, save_trial_best: 0}}
tracking: {{uri: {tracking_uri}, experiment: lakelens-demo}}
"""


class SearchDemo(Demo):
    """Images, one version of a table, a search on it."""

    steps = 4
    master = "local[2]"
    template = EXPERIMENT

    def tell(self) -> dict[str, Any]:
        """Runs the four steps."""
        images = self._prepare_images()
        table = self._open_table()
        with self.story.step("ingest", "Ingest: version 0"):
            result = table.ingest(images.source, layout="class_folders", size=SIZE, splits=SPLITS)
            print(f"{result.stored} images stored")
        self.close()  # the cores are for the trials
        found = self._search()
        report = self.out / "checkpoints" / found.run_id / "report"
        print(
            f"""
  look at the report    {report / "report.html"}
  train the best alone  lakelens train {report / "best.yaml"}
  look at the runs      mlflow ui --backend-store-uri {self.tracking_uri}
""",
            flush=True,
        )
        return {
            "run_id": found.run_id,
            "best_run": found.best_run,
            "metric": found.metric,
            "value": found.value,
            "hyperparameters": dict(found.hyperparameters),
            "trials": dict(found.states),
            "report": str(report / "report.html"),
            "seconds": self.story.times(),
        }

    def _search(self) -> SearchResult:
        from lakelens.jobs.preview import print_preview
        from lakelens.search.running.run import search
        from lakelens.training.configuration.experiment import ExperimentConfig

        config = ExperimentConfig.read(self.experiment)
        with self.story.step("search", f"lakelens search preview and lakelens search run {self.experiment}"):
            print_preview(config)
            found = search(config)
            print(f"best: {found.metric} {found.value:.3f} with {found.hyperparameters}")
        return found
