"""Triton reads TRITON_INTERPRET when it is imported: set it before any test of this run does so."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
