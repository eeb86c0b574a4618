"""Packed-sequence flow training (SLAT): the step that the training levers are measured on."""
