"""TRL's trainer, with what its loss was computed from. Its import takes seconds."""

from __future__ import annotations

import trl


class Probed(trl.GRPOTrainer):
    """Keeps what the loss was computed from, and its gradient by token."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen, self.logps = [], None

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        log_probs = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if log_probs[0].requires_grad:
            log_probs[0].retain_grad()
            self.logps = log_probs[0]
        return log_probs

    def compute_loss(self, model, inputs, *args, **kwargs):
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        self.seen.append((inputs, self.logps, loss.detach()))
        return loss
