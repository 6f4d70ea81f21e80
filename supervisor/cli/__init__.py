"""The command around the library: arguments, input and output as JSON lines, logs, the live line."""
