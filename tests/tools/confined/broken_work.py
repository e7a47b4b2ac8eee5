raise ImportError("no module that the work needs")
