"""Migrations of the registry: one file a revision, applied by the registry's engine."""

REVISIONS = ("0001", "0002", "0003", "0004")
"""The revisions that this version knows, oldest first; a registry at another one is newer."""

HEAD = REVISIONS[-1]
