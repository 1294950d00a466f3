"""Parameter servers: what they hold (pieces), what workers take turns at (tickets), and the wire between both."""
