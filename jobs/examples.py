"""The examples of `--help`; a test parses each of them."""

from __future__ import annotations

_EXAMPLES = """\
lakelens etl photos/ tables/photos --size 224
lakelens etl s3://bucket/photos main.vision.photos --dry-run
lakelens etl landing/ tables/photos --stream --max-files 5000
lakelens table history tables/photos --limit 10
lakelens table counts tables/photos@3
lakelens table diff tables/photos 2 3
lakelens table changes tables/photos 2 3 --limit 20
lakelens table quarantine tables/photos --reason truncated
lakelens table profile tables/photos@3 --out profile/
lakelens table tracked tables/photos
lakelens table pin tables/photos@3 golden
lakelens table unpin tables/photos golden
lakelens table untrack tables/photos --older-than 90d
lakelens table vacuum tables/photos --dry-run
lakelens table restore tables/photos@2
lakelens table repair tables/photos --dry-run
lakelens table optimize tables/photos
lakelens table delete tables/photos "label_name = 'cat' AND width < 32"
lakelens table rename-class tables/photos cta cat
lakelens train tables/photos@3 --entrypoint birds.py:Birds --epochs 5
lakelens train experiment.yaml --set data.version=3 --dry-run
lakelens train --resume RUN
lakelens search preview experiment.yaml --seconds-per-epoch 30
lakelens search run experiment.yaml --set searcher.max_trials=16
lakelens search resume RUN
lakelens search pause RUN
lakelens search stop RUN
lakelens search report RUN --out report/
lakelens score models:/birds@champion tables/photos@3 tables/predictions
lakelens score models:/birds@champion tables/photos tables/predictions --watch 60
lakelens evaluate runs:/RUN tables/photos@3 --compare models:/birds@champion --out evaluation/
lakelens models alias models:/birds/2 champion
lakelens models promote runs:/RUN birds --alias candidate
lakelens models promote runs:/RUN birds --if-better accuracy --on tables/photos@3
lakelens models exists birds champion
lakelens models stale birds tables/photos --min-new-rows 1000
lakelens export models:/birds@champion --format savedmodel --out served/
lakelens runs --experiment birds --limit 20
lakelens runs show RUN
lakelens runs pause RUN
lakelens runs kill RUN
lakelens runs code RUN restored/
lakelens reproduce RUN
lakelens trace tables/predictions file:/data/photos/cat/1.jpg
lakelens trace --run RUN --in tables/predictions
lakelens tensorboard RUN
lakelens schema --result-file experiment.schema.json
lakelens init project/ --table tables/photos
lakelens doctor
lakelens demo --images photos/
"""


def examples_of(command: str) -> list[str]:
    """Lists the example lines of a command, such as `lakelens table`, with those of its actions."""
    return [line for line in _EXAMPLES.splitlines() if f"{line} ".startswith(f"{command} ")]
