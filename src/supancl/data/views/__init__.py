"""Views of a batch: random draws and their rendering."""
