"""Views of objects in a notebook."""
