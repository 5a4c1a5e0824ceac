"""`lakelens doctor`: checks each component and shows how to fix what fails."""
