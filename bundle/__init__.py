"""Turns engine, launcher and run-time libraries into one portable file, by stages that are cached by content."""
