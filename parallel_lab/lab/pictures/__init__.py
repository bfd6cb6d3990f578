"""A plan as plain data for pictures: operators, slices, messages, halos."""
