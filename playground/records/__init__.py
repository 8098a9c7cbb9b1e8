"""What is kept and shared of a comparison."""
