"""Images with a label: read from files and sets, augmented, and normalised."""
