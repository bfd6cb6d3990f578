"""Where slices lie: tensor layouts, named layouts, refinement, and the steps that bring a tensor from one layout to
another.
"""
