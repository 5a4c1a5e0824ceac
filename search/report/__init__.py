"""The report of a search: its journal in, one HTML page, PNG files and the best experiment out.

    journal --history--> SearchHistory --plots, importance--> PNG files --page--> report.html
                                                    --best-------------> best.yaml

Start: `write.write_report`.
"""
