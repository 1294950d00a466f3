"""Parts of decoding: formats, orientation, and what is checked before pixels."""
