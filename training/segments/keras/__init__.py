"""The backend of Keras models: the only part of `segments` that imports TensorFlow, Keras or Horovod's Keras names.

    backend --> built_trial (Trial, model, datasets) --> checks
    backend --> validation, metric_sums, model_state, averages

Start: `backend.KerasBackend`.
"""
