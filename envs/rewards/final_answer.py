"""`score_final_answer` of `toolgym.tools.library.final_answer`, for callers that look for it among the rewards."""

from toolgym.tools.library.final_answer import final_answer as final_answer
from toolgym.tools.library.final_answer import score_final_answer as score_final_answer
