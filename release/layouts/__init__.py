"""How weights lie in a package: groups, tiles, and the C encoder that rounds into them."""
