"""The registry: stored results and marks, their tables, and the queries about them."""
