"""The training of one worker: build, fit, evaluate, checkpoint, report. Public face: train.train(state),
build.assemble. It knows strategies by core.strategy_contract alone."""
