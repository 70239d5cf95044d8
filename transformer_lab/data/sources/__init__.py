"""Where data comes from: one file a source, found by its name.

A file offers functions named after the kinds of examples that it has: `pairs`, `documents`,
`labelled` and `captioned` of (config, report), and `images` of (config). They give a `Found`.
"""
