"""Formats of users' files: lines, records, tables, columns of tags, questions."""
