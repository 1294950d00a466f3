"""What is done to a built network before a strategy wraps it, and needs the run: compilation, a teacher."""
