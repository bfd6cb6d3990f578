"""The quickstart: a network split over ranks, trained, compared with one device, and told as text or as one page."""
