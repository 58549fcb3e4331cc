"""The inference engine: C sources, their public header and the build that turns them into one shared library."""
