"""`mindnano calibrate`: which columns count, measured on texts."""
