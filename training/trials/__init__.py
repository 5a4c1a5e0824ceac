"""What a user writes, the Trial, and the ready-made ones. Public names: `lakelens.Trial`, `lakelens.KerasTrial`."""
