"""Rows by token: of the residual, and of what each layer is told besides."""
