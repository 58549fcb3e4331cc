"""A checkpoint as it comes: its files, its configuration, and the closed world of its tensors."""
