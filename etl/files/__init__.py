"""Folders walked and matched with class names, without Spark. Start: `class_folders.list_below`."""
