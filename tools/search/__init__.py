"""Search: a tool that asks a retriever, and retrievers.

| module | what it gives |
| --- | --- |
| `retriever` | the contract: queries in, passages out |
| `service` | the retriever behind an address, in the protocol of Search-R1's retrieval servers |
| `tool` | `SearchTool`, which a model calls |
"""
