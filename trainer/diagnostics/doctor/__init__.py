"""`leyden doctor`: speed of the devices and links of a topology, and findings about slow ones."""
