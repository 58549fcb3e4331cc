"""The `.l3r` file: what it is made of, writing one, and reading one without the engine."""
