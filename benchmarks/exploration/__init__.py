"""A benchmark of samplers on design spaces of distributed training, with certified Pareto fronts.

    python -m benchmarks.exploration                              # all spaces, our default sampler and NSGA-II
    python -m benchmarks.exploration --samplers screening pymoo --half report --seeds 10
    python -m benchmarks.exploration --certify                    # compute the fronts again

`spaces.yaml` names the spaces and the half that each belongs to, `fronts/` has the certified front of each as a small
file, `samplers.py` the samplers: a function each. docs/benchmark.md has the table.
"""
