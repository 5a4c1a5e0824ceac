"""One version as a page: numbers, findings, plots. Start: `profile.profile`.

version --scan, images, boxes--> data --findings--> page + plots
"""
