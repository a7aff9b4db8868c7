"""How does an update change a weight? One formula for each rule, which learners and stores' optimizers share."""
