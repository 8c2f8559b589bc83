"""HTTP: the application, its server, who may come in, and what is written to a client."""
