"""What every room uses: errors, origins, units, files, events, clusters as data, seeds, hooks. Imports no other."""
