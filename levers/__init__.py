"""Levers: switchable optimisations, their policies and their kernels.

This package never imports ``experiments``; what a lever must know of a workload or of a device is a
Protocol in :mod:`levers.base`.
"""
