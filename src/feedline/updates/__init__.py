"""Updates of weights: one formula for each rule, which learners and stores' optimizers share."""
