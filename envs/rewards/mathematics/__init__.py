"""Whether an answer is the same mathematics as a ground truth: see `toolgym.envs.rewards.same_value`.

A scoring process calls `math_worker.compare`. An answer is read by a grammar of answers (`readings`), whose formulas
(`formulas`) become SymPy expressions with exact numbers, and is compared by what it is (`equality`). What the grammar
cannot read goes to math-verify (`engine`).
"""
