"""Public data sets in the form that users download them, as tasks."""
