"""The tables of the commands, one file each."""
