"""Video."""
