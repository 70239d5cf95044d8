"""Flax Linen modules made of ops."""
