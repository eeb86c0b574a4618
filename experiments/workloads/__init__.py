"""Workloads: real work whose axes an A/B measures, one folder each."""
