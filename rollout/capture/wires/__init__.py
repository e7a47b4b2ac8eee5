"""The APIs that agents speak: a request read, and an answer written, the same for all that keeps the tokens."""

from toolgym.rollout.capture.wires.base import Wire
from toolgym.rollout.capture.wires.chat import ChatWire
from toolgym.rollout.capture.wires.messages import MessagesWire
from toolgym.rollout.capture.wires.responses import ResponsesWire

WIRES: tuple[Wire, ...] = (ChatWire(), ResponsesWire(), MessagesWire())
