"""What a feed reads and in which order: files, rows, epochs, positions. Pure arithmetic."""
