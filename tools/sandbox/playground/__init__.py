"""The sandbox server's playground: pages on which a person tries what a client can do."""
