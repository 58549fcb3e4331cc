"""`mindnano bench`: the server, or the engine alone, measured with its clocks locked."""
