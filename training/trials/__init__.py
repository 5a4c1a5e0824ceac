"""The Trial, which users write, and ready-made Trials. Public names: `lakelens.Trial`, `KerasTrial`, `TorchTrial`."""
