"""The scripts are MindSpore programs: they are started as programs, and cannot be imported for doctests."""

collect_ignore_glob = ["scripts/*"]
