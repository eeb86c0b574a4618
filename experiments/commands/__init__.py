"""The commands of the command line: each parses, calls one pipeline function and prints.

Nothing heavy is imported at the head of these modules, so that ``--help`` starts at once.
"""
