"""The planted levers, one a file, found by the catalog as a folder of lever files."""
