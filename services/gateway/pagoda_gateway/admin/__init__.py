"""The administration as data: bodies and answers of /admin. Knows no HTTP and no database."""
