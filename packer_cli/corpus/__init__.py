"""Files to records: discovery, slices, readers by format, record shapes."""
