"""Rewards of an answer that are functions of text, each in a file of its own.

The file has `reward(prompt, answer, expected)`, which gives a number from 0 to 1."""
