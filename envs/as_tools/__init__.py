"""An env as a class with one method for each tool."""
