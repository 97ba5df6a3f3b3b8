"""Where the formulas come from: the keys that docstrings cite."""

from __future__ import annotations

from collections.abc import Mapping

REFERENCES: Mapping[str, str] = {
    "AICB": (
        "Alibaba Cloud, AICB: AI communication benchmark, workload generator for SimAI, 2024-2025, "
        "github.com/aliyun/aicb, commits 4f33c8e to 23eec3c"
    ),
    "Anthony2024": (
        "Q. Anthony et al., The case for co-designing model architectures with hardware, ICPP 2024, "
        "arXiv:2401.14489"
    ),
    "Austin2025": (
        "J. Austin et al., How to scale your model: a systems view of LLMs on TPUs, "
        "jax-ml.github.io/scaling-book, 2025"
    ),
    "Blackford1999": (
        "S. Blackford and J. Dongarra, LAPACK working note 41: installation guide for LAPACK, appendix C "
        "operation counts for the BLAS and LAPACK, 1999"
    ),
    "Chandrakasan1992": (
        "A. P. Chandrakasan, S. Sheng and R. W. Brodersen, Low-power CMOS digital design, IEEE Journal of "
        "Solid-State Circuits 27(4), 1992"
    ),
    "Cunningham1990": (
        "J. A. Cunningham, The use and evaluation of yield models in integrated circuit manufacturing, IEEE "
        "Transactions on Semiconductor Manufacturing 3(2), 1990"
    ),
    "Daly2006": (
        "J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, Future "
        "Generation Computer Systems 22(3), 2006"
    ),
    "Dao2022": (
        "T. Dao et al., FlashAttention: fast and memory-efficient exact attention with IO-awareness, "
        "NeurIPS 2022, arXiv:2205.14135; T. Dao, FlashAttention-2, arXiv:2307.08691"
    ),
    "Dao2024": (
        "T. Dao, A. Gu, Transformers are SSMs: generalized models and efficient algorithms through "
        "structured state space duality (Mamba-2), ICML 2024, arXiv:2405.21060"
    ),
    "DeepEP2025": (
        "C. Zhao et al., DeepEP: an efficient expert-parallel communication library, "
        "github.com/deepseek-ai/DeepEP, 2025"
    ),
    "DeepFlow": (
        "N. Ardalani et al., DeepFlow: a cross-stack pathfinding framework for distributed AI systems, "
        "ACM TODAES 29(2), 2024, arXiv:2211.03309; first generation of the code, 2019"
    ),
    "DeepSeek2024": (
        "DeepSeek-AI, DeepSeek-V3 technical report, arXiv:2412.19437; the schedules as in "
        "github.com/deepseek-ai/DualPipe"
    ),
    "EIA2023": (
        "U.S. Energy Information Administration, Electric power monthly, average price of electricity to "
        "ultimate customers, industrial sector, 2023"
    ),
    "Huang2019": (
        "Y. Huang et al., GPipe: efficient training of giant neural networks using pipeline parallelism, "
        "NeurIPS 2019, arXiv:1811.06965"
    ),
    "Fedus2022": (
        "W. Fedus et al., Switch transformers: scaling to trillion parameter models with simple and "
        "efficient sparsity, JMLR 23, 2022, arXiv:2101.03961"
    ),
    "Guerreiro2021": (
        "A. P. Guerreiro, C. M. Fonseca and L. Paquete, The hypervolume indicator: computational problems "
        "and algorithms, ACM Computing Surveys 54(6), 2021, arXiv:2005.00515"
    ),
    "Jacobs2023": (
        "S. A. Jacobs et al., DeepSpeed Ulysses: system optimizations for enabling training of extreme long "
        "sequence transformer models, arXiv:2309.14509, 2023"
    ),
    "Jiang2024": (
        "Z. Jiang et al., MegaScale: scaling large language model training to more than 10,000 GPUs, "
        "NSDI 2024, arXiv:2402.15627"
    ),
    "Jordan2024": (
        "K. Jordan et al., Muon: an optimizer for hidden layers in neural networks, 2024, "
        "github.com/KellerJordan/Muon; owners of whole matrices as in NVIDIA/Megatron-LM, "
        "megatron/core/optimizer/layer_wise_optimizer.py"
    ),
    "Klenk2020": (
        "B. Klenk et al., An in-network architecture for accelerating shared-memory multiprocessor "
        "collectives, ISCA 2020"
    ),
    "Ko2024": (
        "S. Ko et al., DFModel: design space optimization of large-scale systems exploiting dataflow "
        "mappings, arXiv:2412.16432"
    ),
    "Korthikanti2022": (
        "V. Korthikanti et al., Reducing activation recomputation in large transformer models, "
        "MLSys 2023, arXiv:2205.05198"
    ),
    "Kung1975": (
        "H. T. Kung, F. Luccio and F. P. Preparata, On finding the maxima of a set of vectors, "
        "Journal of the ACM 22(4), 1975"
    ),
    "Lacour2017": (
        "R. Lacour, K. Klamroth and C. M. Fonseca, A box decomposition algorithm to compute the hypervolume "
        "indicator, Computers & Operations Research 79, 2017"
    ),
    "LamyPoirier2023": ("J. Lamy-Poirier, Breadth-first pipeline parallelism, MLSys 2023, arXiv:2211.05953"),
    "Liu2023": (
        "H. Liu, M. Zaharia and P. Abbeel, Ring attention with blockwise transformers for near-infinite "
        "context, arXiv:2310.01889, 2023"
    ),
    "Llama2024": "A. Grattafiori et al., The Llama 3 herd of models, arXiv:2407.21783, 2024",
    "Narayanan2021": (
        "D. Narayanan et al., Efficient large-scale language model training on GPU clusters using "
        "Megatron-LM, SC 2021, arXiv:2104.04473"
    ),
    "NVIDIA2026": (
        "NVIDIA, Megatron-LM, Megatron-Bridge and Transformer Engine, August 2026: --fp8-recipe, "
        "--fp4-format, --fp8-param-gather, megatron/core/distributed, transformer_engine/common/recipe; "
        "model FLOPs: num_floating_point_operations of Megatron-LM's training.py, flop_utils of Bridge"
    ),
    "Nemhauser1978": (
        "G. L. Nemhauser, L. A. Wolsey and M. L. Fisher, An analysis of approximations for maximizing "
        "submodular set functions I, Mathematical Programming 14, 1978"
    ),
    "Patarasuk2009": (
        "P. Patarasuk and X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, "
        "JPDC 69(2), 2009"
    ),
    "Patterson2021": (
        "D. Patterson et al., Carbon emissions and large neural network training, arXiv:2104.10350, 2021"
    ),
    "Qi2024": (
        "P. Qi, X. Wan, G. Huang and M. Lin, Zero bubble (almost) pipeline parallelism, ICLR 2024, "
        "arXiv:2401.10241; ZB-V by hand as in pytorch/pytorch, torch/distributed/pipelining/schedules.py"
    ),
    "Rajbhandari2020": (
        "S. Rajbhandari et al., ZeRO: memory optimizations toward training trillion parameter models, "
        "SC 2020, arXiv:1910.02054"
    ),
    "Sanders2009": (
        "P. Sanders, J. Speck and J. L. Träff, Two-tree algorithms for full bandwidth broadcast, reduction "
        "and scan, Parallel Computing 35(12), 2009"
    ),
    "Shoeybi2019": (
        "M. Shoeybi et al., Megatron-LM: training multi-billion parameter language models using "
        "model parallelism, arXiv:1909.08053"
    ),
    "SimAI": (
        "X. Wang et al., SimAI: unifying architecture design and performance tuning for large-scale large "
        "language model training with scalability and precision, NSDI 2025; the analytical simulator, "
        "github.com/aliyun/SimAI, commits bf0a9a77, 4e66932a and 13696181"
    ),
    "Steuer1983": (
        "R. E. Steuer and E.-U. Choo, An interactive weighted Tchebycheff procedure for multiple objective "
        "programming, Mathematical Programming 26(3), 1983"
    ),
    "Thakur2005": (
        "R. Thakur, R. Rabenseifner and W. Gropp, Optimization of collective communication operations "
        "in MPICH, IJHPCA 19(1), 2005"
    ),
    "Wang2023": (
        "S. Wang et al., Overlap communication with dependent computation via decomposition in large deep "
        "learning models, ASPLOS 2023"
    ),
    "Young1974": (
        "J. W. Young, A first order approximation to the optimum checkpoint interval, Communications of the "
        "ACM 17(9), 1974"
    ),
    "Zhao2023": (
        "Y. Zhao et al., PyTorch FSDP: experiences on scaling fully sharded data parallel, "
        "VLDB 16(12), 2023, arXiv:2304.11277"
    ),
    "Watanabe2023": (
        "S. Watanabe, A. Bansal and F. Hutter, PED-ANOVA: efficiently quantifying hyperparameter importance "
        "in arbitrary subspaces, IJCAI 2023, arXiv:2304.10255"
    ),
    "Zitzler2003": (
        "E. Zitzler, L. Thiele, M. Laumanns, C. M. Fonseca and V. Grunert da Fonseca, Performance assessment "
        "of multiobjective optimizers: an analysis and review, IEEE TEC 7(2), 2003"
    ),
}
