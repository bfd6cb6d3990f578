"""Where slices lie: layouts, named layouts, refinement, and the steps that bring a tensor from one to another."""
