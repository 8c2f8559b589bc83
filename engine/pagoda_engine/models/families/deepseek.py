"""DeepSeek V2 and V3, and what has their form (Kimi K2): latent attention, experts in groups."""

from dataclasses import replace

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.errors import CheckpointError, UnsupportedModelError
from pagoda_engine.models.description import (
    DecoderDescription,
    ExpertsDescription,
    LatentDescription,
)
from pagoda_engine.models.families.fields import experts_of, refuse, usual_description
from pagoda_engine.models.rope_scaling import read_rope, read_score_multiplier
from pagoda_engine.models.weights.names import WeightNames

_LATENT_NORM_EPS = 1e-6  # of the norms of latents, whatever the configuration says of the others
_RANK_STEP = 16  # what the kernels' tiles need kv_lora_rank to be a multiple of

_V3 = {"n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5}
"""Where the fields are absent; in V2 each is 1."""


def deepseek2(config: ConfigReader) -> DecoderDescription:
    """Softmax scores; groups are as good as their best expert."""
    # transformers ignores it, DeepSeek's own code drops the scaling factor with it.
    refuse(config, "norm_topk_prob", default=False, supported=False)
    method = _one_of(config, "topk_method", "greedy", ("greedy", "group_limited_greedy"))
    _one_of(config, "scoring_func", "softmax", ("softmax",))
    experts = _experts(config, first_sparse=0, norm_topk_prob=False)
    if method == "group_limited_greedy":
        experts = _grouped(config, experts)
    return _description(config, experts, WeightNames(), is_interleaved=True)


def deepseek3(config: ConfigReader) -> DecoderDescription:
    """Sigmoid scores with a bias for the choice; groups are as good as their two best experts."""
    _one_of(config, "topk_method", "noaux_tc", ("noaux_tc",))
    _one_of(config, "scoring_func", "sigmoid", ("sigmoid",))
    normed = config.boolean("norm_topk_prob", True)
    whole = config.replaced(**{name: value for name, value in _V3.items() if not config.has(name)})
    experts = _grouped(whole, _experts(whole, first_sparse=3, norm_topk_prob=normed))
    if experts.num_groups > 1 and experts.num_experts // experts.num_groups < 2:
        raise CheckpointError(
            config.path, f"n_group is {experts.num_groups}: a group must have two experts"
        )
    return _description(
        config,
        replace(experts, scoring="sigmoid"),
        WeightNames(router_bias="mlp.gate.e_score_correction_bias"),
        is_interleaved=config.boolean("rope_interleave", True),
    )


def _description(
    config: ConfigReader, experts: ExpertsDescription, names: WeightNames, *, is_interleaved: bool
) -> DecoderDescription:
    for name in ("attention_bias", "mlp_bias"):
        refuse(config, name, default=False, supported=False)
    latent = LatentDescription(
        q_rank=config.integer("q_lora_rank") if config.has("q_lora_rank") else 0,
        kv_rank=config.integer("kv_lora_rank"),
        nope_dim=config.integer("qk_nope_head_dim"),
        rope_dim=config.integer("qk_rope_head_dim"),
        value_dim=config.integer("v_head_dim"),
        norm_eps=_LATENT_NORM_EPS,
    )
    if latent.kv_rank % _RANK_STEP:
        known = (f"a multiple of {_RANK_STEP}",)
        raise UnsupportedModelError(config.path, "kv_lora_rank", latent.kv_rank, known)
    rope = read_rope(config, is_interleaved=is_interleaved)
    # To rotations a head is what turns; K and V of a head are made of the latent.
    heads = config.integer("num_attention_heads")
    usual = usual_description(
        config.replaced(head_dim=latent.rope_dim, num_key_value_heads=heads), rope
    )
    name = "num_nextn_predict_layers"
    num_more = _count(config, name if config.has(name) else "num_mtp_layers", 0)
    more = range(usual.num_layers, usual.num_layers + min(num_more, usual.num_layers))
    return replace(
        usual,
        head_dim=latent.head_dim,
        attention_scale=latent.head_dim**-0.5 * read_score_multiplier(config),
        experts=experts,
        latent=latent,
        names=replace(
            names,
            latents=(
                "self_attn.q_a_proj" if latent.q_rank else "self_attn.q_proj",
                "self_attn.kv_a_proj_with_mqa",
            ),
            shared_expert="mlp.shared_experts.",
            shared_expert_gate="",
            # Layers after the last one propose further tokens; they are not run here.
            ignored_prefixes=tuple(names.layer.format(layer) for layer in more),
        ),
    )


def _experts(
    config: ConfigReader, *, first_sparse: int, norm_topk_prob: bool
) -> ExpertsDescription:
    """Read all but groups. `first_sparse`: where ``first_k_dense_replace`` is absent."""
    if _count(config, "moe_layer_freq", 1) != 1:
        value = config.fields["moe_layer_freq"]
        raise UnsupportedModelError(config.path, "moe_layer_freq", value, ("1",))
    num_layers = config.integer("num_hidden_layers")
    first = _count(config, "first_k_dense_replace", first_sparse)
    experts = experts_of(
        config,
        0,
        count="n_routed_experts",
        norm_topk_prob=norm_topk_prob,
        shared_size=_count(config, "n_shared_experts", 0) * config.integer("moe_intermediate_size"),
    )
    return replace(
        experts,
        layers=frozenset(range(first, num_layers)),
        routed_scale=config.number("routed_scaling_factor", 1.0),
        is_router_float32=True,
    )


def _grouped(config: ConfigReader, experts: ExpertsDescription) -> ExpertsDescription:
    num_groups, top_groups = config.integer("n_group", 1), config.integer("topk_group", 1)
    if experts.num_experts % num_groups or top_groups > num_groups:
        raise CheckpointError(
            config.path,
            f"n_group is {num_groups} and topk_group {top_groups}: {experts.num_experts} experts "
            "must make equal groups, of which topk_group are chosen",
        )
    allowed = experts.num_experts // num_groups * top_groups
    if experts.num_experts_per_tok > allowed:
        raise CheckpointError(
            config.path,
            f"num_experts_per_tok is {experts.num_experts_per_tok}, must be at most the {allowed} "
            f"experts of {top_groups} groups",
        )
    return replace(experts, num_groups=num_groups, top_groups=top_groups)


def _one_of(config: ConfigReader, name: str, default: str, known: tuple[str, ...]) -> str:
    value = config.string(name, default)
    if value not in known:
        raise UnsupportedModelError(config.path, name, value, known)
    return value


def _count(config: ConfigReader, name: str, default: int) -> int:
    """Return a number that may be 0."""
    if config.has(name) and config.fields[name] != 0:
        return config.integer(name)
    return 0 if config.has(name) else default
