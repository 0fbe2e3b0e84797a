"""What lies on disk, once: checksums, the marks that say which set a file is of, the order of epochs."""
