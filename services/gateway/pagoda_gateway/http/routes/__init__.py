"""HTTP routes, one module for each noun. What they answer with is documented in `http.openapi`."""
