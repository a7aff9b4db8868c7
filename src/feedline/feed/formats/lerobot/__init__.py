"""Datasets of robots in LeRobot's layout: tables of frames, and videos."""
