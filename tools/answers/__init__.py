"""Reading answers out of text: where a text marks its answer, and the tokens and numbers of an answer.

Nothing here computes with what a policy wrote. The time is linear in the text, and long texts are read from their end.
"""
