"""What a rank's process knows of its job, and how it speaks to its supervisor. Imports nothing heavy."""
