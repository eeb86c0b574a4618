"""Experiments: plan, run and decide A/B comparisons of levers, store and show the verdicts."""
