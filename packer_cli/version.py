"""The release. Everything takes it from here, so that nothing below the API imports the package as a whole."""

__version__ = "0.1.0"
