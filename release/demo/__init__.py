"""The small built-in model: the text it learns from, its training, its checkpoint and its figures."""
