"""What several labs use: the base of models and widgets, subjects, pages, the proof of equality."""
