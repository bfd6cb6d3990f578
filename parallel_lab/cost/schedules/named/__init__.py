"""The schedules that have a name, one function each. A new one is a function with `@named(...)` in a file of this
folder: every file here is read, so nothing else changes."""
