"""How is it learned from? Schedules, learners, the trainer, the session and its checkpoints."""
