"""`lakelens doctor`: checks each component and says how to fix what fails."""
