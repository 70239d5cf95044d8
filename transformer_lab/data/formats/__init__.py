"""Readers of users' files: lines, records, tables, columns of tags, and questions."""
