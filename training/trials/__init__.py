"""Ready-made trials."""
