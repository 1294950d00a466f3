"""`leyden doctor`: how fast the devices and the links of a topology are, and which are slower than they should be."""
