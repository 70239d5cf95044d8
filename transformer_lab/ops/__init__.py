"""Pure functions on arrays: no modules, no files, no config."""
