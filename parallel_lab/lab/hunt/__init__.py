"""The hunt: one of up to 16 bugs is planted in a training; probes cost points, and par is proved."""
