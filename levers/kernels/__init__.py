"""Kernels of the levers: one operation a file, with its plain-PyTorch reference."""
