"""The report of a search: its journal in, one HTML page, PNG files and the best experiment out. Start: `write`."""
