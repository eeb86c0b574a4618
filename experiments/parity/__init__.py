"""The parity battery: one file a check."""
