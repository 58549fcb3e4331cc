"""`mindnano finalize` and `verify`: the folder that is a release, made, and checked again from its bytes."""
