"""What a release claims, and whether it is so: lists, signatures, stamps, `--verify`."""
