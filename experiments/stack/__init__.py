"""Stacks: levers added one after the other, and what each brings."""
