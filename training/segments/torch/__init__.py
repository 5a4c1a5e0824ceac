"""The backend of PyTorch models: the only part of `segments` that imports PyTorch.

    backend --> built_trial (Trial, model, optimizer, batches) --> checks
    backend --> training_step (loss, gradients over ranks, update), metric_sums, rank_noise

Start: `backend.TorchBackend`.
"""
