"""``dist_async``: workers push and pull when they like; servers apply each push at once, and nobody waits."""
