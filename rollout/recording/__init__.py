"""Recording a run, and playing it again without its engine and tools."""
