"""Search: a tool that asks a retriever, and retrievers.

| module | what it gives |
| --- | --- |
| `retriever` | the contract: queries in, passages out |
| `service` | the retriever behind an address, in the protocols of Search-R1 and of KILT |
| `corpus` | a file of passages |
| `bm25` | the retriever over a file by words |
| `dense`, `embedding` | the retriever over a file by vectors, and vectors from a model |
| `index_folder`, `threads` | an index on disk; searches beside the event loop |
| `server` | `toolgym serve search` |
| `tool` | `SearchTool`, which a model calls |
"""
