"""Getting a model: sources, transport, resume, `--download` and the first start."""
