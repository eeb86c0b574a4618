"""Recorded decisions of people, decided again under a named policy."""
