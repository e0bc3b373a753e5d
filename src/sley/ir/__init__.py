"""IR: the immutable values that the stages of sley hand to one another, as NumPy columns."""
