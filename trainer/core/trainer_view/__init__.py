"""`self.trainer` of a task, a data module or a Lightning callback. Public face: view.TrainerView."""
