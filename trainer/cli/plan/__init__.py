"""`leyden plan`: time, memory, traffic and cost of a config before anything is started."""
