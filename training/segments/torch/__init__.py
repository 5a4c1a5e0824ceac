"""The backend of PyTorch models: the only part of `segments` that imports PyTorch.

    backend --> built_trial (Trial, model, optimizer, batches) --> checks
    backend --> validation, world (the ranks)

Start: `backend.TorchBackend`.
"""
