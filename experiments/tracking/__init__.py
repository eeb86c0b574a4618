"""The MLflow mirror: what is written, where, and the process that writes it."""
