"""Options: one table, five layers, and what is derived from them."""
