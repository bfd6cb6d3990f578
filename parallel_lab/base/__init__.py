"""Words and hooks that every room uses: errors, origins, units, files, events, the cluster as data, seeds, hooks;
imports nothing of the package.
"""
