"""SGLang, over HTTP or in this process."""
