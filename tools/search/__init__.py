"""Search: `SearchTool`, which a model calls, the contract of retrievers, and those behind an address (`service`), by
words (`bm25`) and by vectors (`dense`). `toolgym serve search` is in `server`."""
