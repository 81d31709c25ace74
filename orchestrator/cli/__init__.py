"""The command line: one module a command or group of commands, imported when it is called."""
