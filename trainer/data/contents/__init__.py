"""What is in the data: counted, and described."""
