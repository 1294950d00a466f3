"""Parameter servers: shards of the parameters, the tickets that workers draw, and the protocol between both."""
