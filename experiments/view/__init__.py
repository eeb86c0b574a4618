"""Runs as words and numbers that are ready to show; every report is drawn from these."""
