"""One file a command of `transformer_lab COMMAND`: its flags, and its words."""
