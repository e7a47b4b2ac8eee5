"""The process that passes requests and answers between the host and the children."""
