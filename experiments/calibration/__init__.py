"""Calibrations: what a machine's noise is, and what a verdict will take on it."""
