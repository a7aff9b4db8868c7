"""Figures of a loader, and the advice that follows from them."""
