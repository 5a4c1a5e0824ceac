"""Folders walked and matched with class names, without Spark. Door: `class_folders.list_within`."""
