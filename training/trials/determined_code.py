"""Finds lines of Determined's API in the source of a Trial, before anything of the user's is imported. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from ...errors import TrialError

_AVERAGED = "remove it: the job averages gradients"
_BATCH = (
    "remove it: the feed takes the global batch and gives each rank its part; self.context.global_batch_size has it"
)
_PREPROCESS = "images come from data.table as uint8, 0 to 255; scale them in the model, augment them in preprocess"
CONTEXT: Mapping[str, str] = {
    "backward": "return the loss from training_step",
    "distributed": "use self.context.rank and self.context.size",
    "experimental": "remove it",
    "get_data_config": "the table is `data` in the experiment file; the feed brings its batches",
    "get_experiment_config": "read values with self.context.get_hparam",
    "get_experiment_id": "remove it: each run has an id of MLflow",
    "get_experiment_seed": "use self.context.seed",
    "get_global_batch_size": "use self.context.global_batch_size",
    "get_hparams": "read each with self.context.get_hparam(name), or get_hparam(name, default)",
    "get_per_slot_batch_size": _BATCH,
    "get_trial_id": "remove it: each run has an id of MLflow",
    "get_trial_seed": "use self.context.seed",
    "set_stop_requested": "use early_stopping in the experiment file",
    "step_optimizer": _AVERAGED,
    "to_device": "remove it: batches and model are on the rank's device",
    "wrap_dataset": f"remove it: {_PREPROCESS}",
    "wrap_lr_scheduler": "return it from build_scheduler",
    "wrap_model": "remove it",
    "wrap_optimizer": _AVERAGED,
    "wrap_scaler": "use optimizations.mixed_precision in the experiment file",
}
METHODS: Mapping[str, str] = {
    "build_training_data_loader": f"{_PREPROCESS}; for batches of your own, build_training_dataset",
    "build_validation_data_loader": f"{_PREPROCESS}; for batches of your own, build_validation_dataset",
    "evaluate_batch": "use validation_step",
    "session_config": "remove it: TensorFlow 2 has no sessions",
    "train_batch": "use training_step",
}
# Others may be the user's own names in a Trial of lakelens.
_NEVER_CALLED = ("build_training_data_loader", "build_validation_data_loader")
_IMPORT = "import lakelens; the classes are lakelens.KerasTrial and lakelens.TorchTrial"


def check_not_determined(source: str, class_name: str, name: str, first_line: int = 1) -> None:
    """Checks that a Trial class does not call, or wait for calls of, what Determined has and lakelens has not.

    Raises:
        TrialError: If it does; names all lines, each with what to write instead.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return  # the import names it
    found = sorted(set(_lines_of(tree, class_name)))
    if found:
        lines = "".join(f"\n  line {line + first_line - 1}, {word}: {instead}" for line, word, instead in found)
        raise TrialError(f"{name} is written for Determined (docs/migration/determined.md):{lines}")


def _lines_of(tree: ast.Module, class_name: str) -> Iterator[tuple[int, str, str]]:
    imports = list(_imports(tree, class_name))
    yield from imports
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.ClassDef) and node.name == class_name):
            continue
        for method in node.body:
            if not isinstance(method, ast.FunctionDef):
                continue
            is_meant = bool(imports) or (method.name in _NEVER_CALLED and method.name not in used)
            if method.name in METHODS and is_meant:
                yield method.lineno, f"def {method.name}", METHODS[method.name]
            yield from _calls(method)


def _imports(tree: ast.Module, class_name: str) -> Iterator[tuple[int, str, str]]:
    """Yields imports of Determined, but those that only other classes use and guarded ones that the class does not."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    own, others = (
        {id(inner) for one in classes if (one.name == class_name) == is_own for inner in ast.walk(one)}
        for is_own in (True, False)
    )
    guards = (node for node in ast.walk(tree) if isinstance(node, (ast.Try, ast.If)))
    guarded = {id(inner) for guard in guards for inner in ast.walk(guard)}
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        from_where = (node.module or "" if not node.level else "") if isinstance(node, ast.ImportFrom) else None
        for alias in node.names:
            module = alias.name if from_where is None else from_where
            if module.partition(".")[0] != "determined":
                continue
            bound = alias.asname or alias.name.partition(".")[0]
            uses = [id(name) for name in names if name.id == bound]
            is_of_others = bool(uses) and others.issuperset(uses)
            if not own.isdisjoint(uses) or not (id(node) in guarded or is_of_others):
                yield node.lineno, f"import of {module}", _IMPORT


def _calls(method: ast.FunctionDef) -> Iterator[tuple[int, str, str]]:
    """Yields uses of the context: `self.context`, and the argument of `__init__`."""
    contexts = ["self.context"]
    if method.name == "__init__" and len(method.args.args) > 1:
        contexts.append(method.args.args[1].arg)
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and node.attr in CONTEXT and ast.unparse(node.value) in contexts:
            yield node.lineno, f"context.{node.attr}", CONTEXT[node.attr]
