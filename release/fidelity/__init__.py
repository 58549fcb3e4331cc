"""How far a package is from its checkpoint, and the logits by which anyone can tell."""
