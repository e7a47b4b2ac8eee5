"""Messages to token ids and back, exactly as the chat template writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.rollout.tokens.context_policies import ContextPolicy as ContextPolicy
    from toolgym.rollout.tokens.context_policies import ContextState as ContextState
    from toolgym.rollout.tokens.context_policies import CutToolResults as CutToolResults
    from toolgym.rollout.tokens.context_policies import KeepToolResults as KeepToolResults
    from toolgym.rollout.tokens.context_policies import Summarize as Summarize
    from toolgym.rollout.tokens.renderer import ChatRenderer as ChatRenderer
else:
    __getattr__, __dir__ = lazy_names(__name__)
