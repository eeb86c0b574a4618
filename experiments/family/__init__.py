"""Selections: several settings of one lever in one run, and the winner measured again."""
