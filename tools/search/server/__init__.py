"""The search server: passages of a file over HTTP, as Search-R1's and KILT's retrieval servers give them."""
