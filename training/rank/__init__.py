"""A rank's process: its place in the job and its connection to the supervisor. Imports nothing heavy."""
