"""What the portable program carries behind its code, and how it is reached."""
