"""Labelled images: read from files and data sets, augmented, and normalised."""
