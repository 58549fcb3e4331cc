"""The publisher's side: converts checkpoints to packages and measures what they do."""
