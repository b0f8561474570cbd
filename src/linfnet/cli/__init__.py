"""The command line: one small class per command, whose fields are its options."""
