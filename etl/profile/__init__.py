"""One version as a page: numbers, findings, plots. Door: `profile.profile`.

version --scan, images, boxes--> data --findings--> page + plots + sheet
"""
