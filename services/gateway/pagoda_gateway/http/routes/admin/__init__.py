"""Routes of the administration, /admin: one module for each noun. They have a key of their own."""
