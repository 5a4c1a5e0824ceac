"""The experiment file: YAML (or a dict) in, one validated `ExperimentConfig` out. Pure: no Spark, no TensorFlow.

    experiment.yaml --yaml_file--> values, lines --experiment--> ExperimentConfig
                                                 --problems----> ConfigurationError: path, line, value, rule, fix

Start: `ExperimentConfig.read`.
"""
