"""Starts, watches and ends one rank's process and all its children. Start: `supervisor`."""
