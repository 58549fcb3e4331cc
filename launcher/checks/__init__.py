"""What `--check` looks at: one module per group, each a function from a SystemView to findings."""
