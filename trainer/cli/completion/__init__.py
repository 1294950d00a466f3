"""`leyden completion`: functions for bash, zsh and fish, and the index that they read."""
