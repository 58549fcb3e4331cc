"""`mindnano mtp`: the MTP layer taken out, put in, and proven to be all that changed."""
