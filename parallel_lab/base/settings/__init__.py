"""Settings: validated when they are set, frozen when they are used."""
