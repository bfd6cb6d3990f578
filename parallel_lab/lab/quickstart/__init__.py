"""The quickstart: a network cut among ranks, trained, compared with one device, and told as text or as one page."""
