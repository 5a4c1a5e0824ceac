"""What a user writes, the Trial, and the ready-made ones. Door: `lakelens.Trial`."""
