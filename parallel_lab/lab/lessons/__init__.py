"""One module per lesson, with all that its notebook uses beside `parallel_lab` itself:
`from parallel_lab.lab.lessons.fusion import FusionLab, check, hint`.
"""
