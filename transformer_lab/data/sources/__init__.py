"""Where data comes from: each file is a source, found by its name.

A file offers functions named after its kinds of examples: `pairs`, `documents`, `labelled` and so
on of (config, report), `images` and `captioned` of (config). Most of them return a `Found`."""
