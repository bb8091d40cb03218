"""Steps in other tools: the numbers of the log under their names."""

import nibble.loggers


class Run:
    def __init__(self):
        self.lines = []

    def log(self, numbers, step):
        self.lines.append((step, numbers))

    def finish(self):
        self.lines.append("end")


STEP = {"step": 3, "loss": 1.5, "tokens": 64, "skipped": False, "kl": {"mean": 0.25, "name": "k1"}, "text": "x"}


def test_wandb_gets_the_numbers():
    run = Run()
    logger = nibble.loggers.WandB(run, prefix="train/")
    logger(STEP)
    logger.close()
    assert run.lines == [(3, {"train/loss": 1.5, "train/tokens": 64.0, "train/kl/mean": 0.25}), "end"]


def test_several_call_all_and_stop_when_one_says_so():
    seen = []
    call = nibble.loggers.several(lambda s: seen.append(1), lambda s: True, lambda s: seen.append(2))
    assert call(STEP) is True and seen == [1, 2]
    assert nibble.loggers.several(seen.append)(STEP) is False
