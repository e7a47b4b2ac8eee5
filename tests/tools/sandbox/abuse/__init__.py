"""Programs that try to break out of a sandbox, to exhaust it or to confuse it, and the machinery that runs them."""
