"""Images into versioned Delta tables."""
