"""What an image table is: its columns and properties, how rows are split, how classes are numbered. Pure."""
