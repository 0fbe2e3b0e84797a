"""The command line: one file a command; options -> config -> stage -> table. Everything that prints is here."""
