"""Rooflines: where the time of a step goes, and how far that is from the ceilings."""
