"""Attention that one can look at: captured weights as a page, as pictures, as numbers."""
