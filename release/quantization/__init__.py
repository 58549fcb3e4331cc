"""`mindnano quantize`: from a checkpoint to encoded assets, in bounded memory and on every core."""
